//! The time of a run of a scalar, and that of a bare ping-pong between two threads over TCP. Both pairs of
//! ends exist all the time, and short blocks of the two alternate: what else the machine does disturbs both.

use std::time::{Duration, Instant};

use anyhow::ensure;
use pushpull::{GraphBuilder, GraphSpec, NodeId, Server, Session, Tensor, TensorSpec};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

/// The number of blocks of each kind.
const BLOCKS: usize = 40;
/// The number of exchanges of a block. A block takes less than the time after which an idle session rests.
const EXCHANGES: usize = 125;
/// The number of blocks of each kind before the measurement.
const WARM: usize = 4;
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
    let mut ping_pong = PingPong::new()?;
    let mut scalar = Scalar::new()?;
    let (mut pings, mut runs) = (Vec::new(), Vec::new());
    for block in 0..WARM + BLOCKS {
        let (mut ping, mut run) = (Vec::new(), Vec::new());
        // Neither of the two always comes first.
        if block % 2 == 0 {
            ping_pong.block(&mut ping)?;
            scalar.block(&mut run)?;
        } else {
            scalar.block(&mut run)?;
            ping_pong.block(&mut ping)?;
        }
        if block >= WARM {
            pings.append(&mut ping);
            runs.append(&mut run);
        }
    }
    Ok((Times::of(pings), Times::of(runs)))
}

fn runtime() -> std::io::Result<Runtime> {
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

/// One end of the ping-pong. The other end is a thread, which ends with this value.
struct PingPong {
    runtime: Runtime,
    stream: TcpStream,
}

impl PingPong {
    fn new() -> anyhow::Result<Self> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        std::thread::spawn(move || runtime()?.block_on(pong(listener)));
        let runtime = runtime()?;
        let stream = runtime.block_on(TcpStream::connect(address))?;
        stream.set_nodelay(true)?;
        Ok(Self { runtime, stream })
    }

    fn block(&mut self, times: &mut Vec<Duration>) -> anyhow::Result<()> {
        let Self { runtime, stream } = self;
        runtime.block_on(async {
            let mut message = [7; MESSAGE_BYTES];
            for _ in 0..EXCHANGES {
                let began = Instant::now();
                stream.write_all(&message).await?;
                stream.read_exact(&mut message).await?;
                times.push(began.elapsed());
            }
            Ok(())
        })
    }
}

/// A session that runs a scalar, and its server.
struct Scalar {
    session: Session,
    graph: GraphSpec,
    nodes: [NodeId; 2],
    runs: usize,
    _server: Server,
}

impl Scalar {
    fn new() -> anyhow::Result<Self> {
        let server = Server::local()?;
        let session = server.session()?;
        let mut g = GraphBuilder::new("scalar");
        let x = g.placeholder("x", TensorSpec::f32([]));
        let y = g.identity(x);
        Ok(Self { session, graph: g.finish_session()?, nodes: [x, y], runs: 0, _server: server })
    }

    fn block(&mut self, times: &mut Vec<Duration>) -> anyhow::Result<()> {
        let [x, y] = self.nodes;
        for _ in 0..EXCHANGES {
            self.runs += 1;
            let expected = self.runs as f32;
            let value = Tensor::from(expected);
            let began = Instant::now();
            let fetched = self.session.run(&self.graph, &[(x, value)], &[y])?;
            times.push(began.elapsed());
            ensure!(fetched[0].f32s() == Some(&[expected]), "another value has come back");
        }
        Ok(())
    }
}
