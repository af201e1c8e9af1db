//! The processes that the benchmark starts: this program again, with a task as its argument. A process says
//! when it is ready, waits for a line, measures, and prints what it measured.

use std::io::{BufRead, Write};
use std::sync::OnceLock;

use pushpull_transport::Congestion;
use serde::{Deserialize, Serialize};

use crate::cluster::Setup;
use crate::process::Process;
use crate::{limits, worker};

/// The congestion control of all connections of this run.
static CONGESTION: OnceLock<Congestion> = OnceLock::new();

/// Sets the congestion control of all connections, also of the processes that are started later.
pub(crate) fn set_congestion(congestion: Congestion) {
    CONGESTION.set(congestion).expect("set once");
}

/// Returns the congestion control of all connections.
pub(crate) fn congestion() -> Congestion {
    CONGESTION.get().cloned().unwrap_or_default()
}

/// What a process does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Reads from a raw socket at this address.
    Sink(String),
    /// Writes to a raw socket at this address.
    Source(String),
    /// Answers the messages of [`Ping`](Self::Ping).
    Pong(String),
    Ping(String),
    Copy,
    /// Exchanges values with ps tasks in other processes, as the worker with this index.
    Worker(Box<Setup>, u32),
    /// Exchanges values with a ps task in the same process.
    Embedded(Box<Setup>),
}

/// What a process has measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub seconds: f64,
    /// The number of bytes that were moved.
    pub bytes: u64,
    /// The time of each exchange in microseconds: median, 99th and 99.9th percentile; `None` for one that
    /// would be the longest of too few times.
    pub times_us: [Option<f64>; 3],
    /// The CPU time of the process during the measurement.
    pub cpu_s: f64,
    /// The peak resident memory of the process.
    pub peak_bytes: u64,
}

impl Measured {
    /// Returns the throughput in Gbit/s.
    pub(crate) fn gbit_s(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.seconds / 1e9
    }
}

impl Task {
    /// Returns the task that [`start`] has passed as an argument.
    pub(crate) fn from_text(text: &str) -> anyhow::Result<Self> {
        Ok(serde_json::from_str(text)?)
    }

    /// Carries out the task.
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Sink(address) => limits::sink(&address),
            Self::Source(address) => limits::source(&address).await,
            Self::Pong(address) => limits::pong(&address).await,
            Self::Ping(address) => limits::ping(&address).await,
            Self::Copy => limits::copy(),
            Self::Worker(setup, index) => worker::run(&setup, index).await,
            Self::Embedded(setup) => worker::run_embedded(&setup).await,
        }
    }
}

/// Says that this process is ready, and waits until it may begin. Returns the number of seconds to measure.
pub(crate) fn wait_to_begin() -> anyhow::Result<f64> {
    println!("ready");
    std::io::stdout().flush()?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    Ok(line.trim().parse()?)
}

/// Prints what this process has measured.
pub(crate) fn report(measured: &Measured) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(measured)?);
    Ok(())
}

/// Starts a process for a task.
pub(crate) fn start(task: &Task) -> anyhow::Result<Process> {
    Process::start(task, &[format!("--tcp-congestion={}", congestion())])
}

/// Lets processes that are ready measure at the same time, and returns what they measured.
pub(crate) async fn measure(processes: &mut [Process], seconds: f64) -> anyhow::Result<Vec<Measured>> {
    for process in &mut *processes {
        process.send(&seconds.to_string()).await?;
    }
    let mut all = Vec::new();
    for process in processes {
        all.push(serde_json::from_str(&process.line().await?)?);
    }
    Ok(all)
}
