//! What a process of the benchmark does: repeats an exchange as often as it is told, and reports how long it
//! took.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::case::Setup;
use crate::process::Process;
use crate::rank;

/// The bytes of a message of the ping-pong.
const MESSAGE_BYTES: usize = 4096;
/// The number of exchanges before the measurement, from which their number in the measurement follows.
const WARM_UP: u64 = 20;
/// The largest number of exchanges in a measurement.
const EXCHANGES_MAX: f64 = 50_000.0;

/// What a process does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Reduces with the other processes, as the process with this index.
    Rank(Box<Setup>, u32),
    /// Answers the messages of [`Ping`](Self::Ping).
    Pong(String),
    Ping(String),
}

/// The times of the exchanges of a process, in microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub median_us: f64,
    pub p99_us: f64,
}

impl Measured {
    /// Returns the percentiles of times.
    pub(crate) fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |share: f64| times[(times.len() as f64 * share) as usize].as_secs_f64() * 1e6;
        Self { median_us: at(0.5), p99_us: at(0.99) }
    }
}

impl Task {
    /// Returns the task that the benchmark has passed as an argument.
    pub(crate) fn from_text(text: &str) -> anyhow::Result<Self> {
        Ok(serde_json::from_str(text)?)
    }

    /// Carries out the task.
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Rank(setup, index) => rank::run(&setup, index).await,
            Self::Pong(address) => pong(&address).await,
            Self::Ping(address) => ping(&address).await,
        }
    }
}

/// Says that this process is ready.
pub(crate) fn say_ready() -> anyhow::Result<()> {
    println!("ready");
    Ok(std::io::stdout().flush()?)
}

/// The lines from the process that has started this one. While one is awaited, the ps task of this process
/// may serve others.
pub(crate) struct Orders(mpsc::UnboundedReceiver<String>);

impl Orders {
    /// Begins to read lines.
    pub(crate) fn read() -> Self {
        let (sender, lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            let lines = std::io::stdin().lines().map_while(Result::ok);
            lines.into_iter().all(|line| sender.send(line).is_ok())
        });
        Self(lines)
    }

    /// Returns the next line; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<String> {
        self.0.recv().await
    }
}

/// Repeats an exchange as often as each line says, and reports how long it took.
pub(crate) async fn obey(
    mut orders: Orders,
    mut exchange: impl AsyncFnMut() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    say_ready()?;
    while let Some(line) = orders.next().await {
        let mut times = Vec::new();
        for _ in 0..line.parse::<u64>()? {
            let began = Instant::now();
            exchange().await?;
            times.push(began.elapsed());
        }
        println!("{}", serde_json::to_string(&Measured::of(times))?);
    }
    Ok(())
}

async fn pong(address: &str) -> anyhow::Result<()> {
    let listener = TcpListener::bind(address).await?;
    say_ready()?;
    let (mut stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    let mut message = [0; MESSAGE_BYTES];
    while stream.read_exact(&mut message).await.is_ok() {
        stream.write_all(&message).await?;
    }
    Ok(())
}

async fn ping(address: &str) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut message = [7; MESSAGE_BYTES];
    obey(Orders::read(), async || {
        stream.write_all(&message).await?;
        stream.read_exact(&mut message).await?;
        Ok(())
    })
    .await
}

async fn exchange(processes: &mut [Process], count: u64) -> anyhow::Result<Measured> {
    for process in &mut *processes {
        process.send(&count.to_string()).await?;
    }
    let mut slowest: Option<Measured> = None;
    for process in processes {
        let measured: Measured = serde_json::from_str(&process.line().await?)?;
        slowest = slowest.filter(|slowest| slowest.median_us >= measured.median_us).or(Some(measured));
    }
    slowest.context("at least one process")
}

/// Lets processes exchange for about this time, and returns the times of the slowest one. All of them make
/// the same number of exchanges, since each exchange needs all of them.
pub(crate) async fn repeat(processes: &mut [Process], seconds: f64) -> anyhow::Result<Measured> {
    let warm = exchange(processes, WARM_UP).await?;
    let count = (seconds * 1e6 / warm.median_us).clamp(WARM_UP as f64, EXCHANGES_MAX);
    exchange(processes, count as u64).await
}
