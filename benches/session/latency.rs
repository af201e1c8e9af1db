//! The time of a run of a scalar, and that of a bare ping-pong between two threads over TCP.

use std::time::{Duration, Instant};

use anyhow::ensure;
use pushpull::{GraphBuilder, Server, Tensor, TensorSpec};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The number of exchanges of each kind.
const EXCHANGES: usize = 5_000;
/// The number of exchanges before the measurement.
const WARM: usize = 500;
/// The size of the messages of the ping-pong: about that of a request to run a scalar.
const MESSAGE_BYTES: usize = 128;

/// The median and the 99th percentile of some times, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub p50: f64,
    pub p99: f64,
}

impl Times {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort();
        let at = |share: f64| times[(times.len() as f64 * share) as usize].as_secs_f64() * 1e6;
        Self { p50: at(0.5), p99: at(0.99) }
    }
}

/// Measures the ping-pong and the run.
pub(crate) fn measure() -> anyhow::Result<(Times, Times)> {
    Ok((ping_pong()?, runs()?))
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

async fn pong(listener: std::net::TcpListener) -> anyhow::Result<()> {
    let (mut stream, _) = TcpListener::from_std(listener)?.accept().await?;
    stream.set_nodelay(true)?;
    let mut message = [0; MESSAGE_BYTES];
    while stream.read_exact(&mut message).await.is_ok() {
        stream.write_all(&message).await?;
    }
    Ok(())
}

fn ping_pong() -> anyhow::Result<Times> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let other = std::thread::spawn(move || runtime()?.block_on(pong(listener)));
    let times = runtime()?.block_on(async {
        let mut stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (mut message, mut times) = ([7; MESSAGE_BYTES], Vec::new());
        for exchange in 0..WARM + EXCHANGES {
            let began = Instant::now();
            stream.write_all(&message).await?;
            stream.read_exact(&mut message).await?;
            if exchange >= WARM {
                times.push(began.elapsed());
            }
        }
        anyhow::Ok(times)
    })?;
    other.join().expect("the other end has not panicked")?;
    Ok(Times::of(times))
}

fn runs() -> anyhow::Result<Times> {
    let server = Server::local()?;
    let session = server.session()?;
    let mut g = GraphBuilder::new("scalar");
    let x = g.placeholder("x", TensorSpec::f32([]));
    let y = g.identity(x);
    let graph = g.finish_session()?;
    let mut times = Vec::new();
    for exchange in 0..WARM + EXCHANGES {
        let value = Tensor::from(exchange as f32);
        let began = Instant::now();
        let fetched = session.run(&graph, &[(x, value)], &[y])?;
        if exchange >= WARM {
            times.push(began.elapsed());
        }
        ensure!(fetched[0].f32s() == Some(&[exchange as f32]), "another value has come back");
    }
    Ok(Times::of(times))
}
