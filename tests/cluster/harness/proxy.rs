//! An unreliable network on loopback: a proxy between a task that listens and its callers. It drops,
//! duplicates, delays and reorders frames, and cuts connections, at given rates and with a seed. Handshakes
//! always pass.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use pushpull_transport::wire::{Limits, PREFIX_BYTES, Prefix};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The maximum time that a frame is held back, so that the next frame can overtake it.
const OVERTAKE: Duration = Duration::from_millis(4);
const DELAY_MS_MAX: u64 = 4;
const HEARTBEAT: u16 = 4;

/// The number of frames per 1000 with each kind of fault. The remaining frames pass.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rates {
    pub(crate) drop_reply: u64,
    pub(crate) double_reply: u64,
    pub(crate) delay_reply: u64,
    pub(crate) reorder_reply: u64,
    pub(crate) double_request: u64,
    /// The rate at which connections are cut between two frames, in each direction.
    pub(crate) cut: u64,
    /// The rate at which connections are cut in the middle of a frame, in each direction.
    pub(crate) cut_in_frame: u64,
}

impl Rates {
    /// The rates between workers and a ps task, which exchange many frames. With these rates a job still
    /// comes to its end.
    pub(crate) const BAD: Self = Self {
        drop_reply: 20,
        double_reply: 150,
        delay_reply: 100,
        reorder_reply: 100,
        double_request: 150,
        cut: 4,
        cut_in_frame: 4,
    };
}

/// A running proxy. When it is dropped, the proxy and its connections end.
pub(crate) struct Proxy {
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The number of faults of each kind so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    pub(crate) dropped: u64,
    pub(crate) doubled_replies: u64,
    pub(crate) delayed: u64,
    pub(crate) reordered: u64,
    pub(crate) doubled_requests: u64,
    pub(crate) cut: u64,
    pub(crate) cut_in_frame: u64,
}

impl Faults {
    pub(crate) const fn total(&self) -> u64 {
        self.dropped
            + self.doubled_replies
            + self.delayed
            + self.reordered
            + self.doubled_requests
            + self.cut
            + self.cut_in_frame
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Pass,
    Drop,
    Double,
    Delay,
    /// The next frame overtakes this one.
    Reorder,
    Cut,
    CutInFrame,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Request,
    Reply,
}

struct Shared {
    target: String,
    rates: Rates,
    seed: u64,
    quiet: AtomicBool,
    /// The number of frames, indexed by direction and fate.
    counts: [[AtomicU64; 7]; 2],
}

impl Proxy {
    /// Accepts connections at `address` and forwards them to `target`. The target may be started later.
    #[track_caller]
    pub(crate) fn start(address: &str, target: &str, rates: Rates, seed: u64) -> Self {
        let socket = std::net::TcpListener::bind(address).expect("the proxy's port is free");
        socket.set_nonblocking(true).expect("a socket");
        let (quiet, counts) = (AtomicBool::new(false), Default::default());
        let shared = Arc::new(Shared { target: target.to_owned(), rates, seed, quiet, counts });
        let (stop, stopped) = oneshot::channel::<()>();
        let served = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let socket = TcpListener::from_std(socket).expect("a listening socket");
                tokio::select! {
                    never = accept(socket, served) => match never {},
                    _ = stopped => {}
                }
            });
        });
        Self { shared, stop: Some(stop), thread: Some(thread) }
    }

    /// Ends the faults: from now on all frames pass.
    pub(crate) fn calm_down(&self) {
        self.shared.quiet.store(true, Ordering::Relaxed);
    }

    pub(crate) fn faults(&self) -> Faults {
        let count =
            |way: Way, fate: Fate| self.shared.counts[way as usize][fate as usize].load(Ordering::Relaxed);
        let either = |fate| count(Way::Request, fate) + count(Way::Reply, fate);
        Faults {
            dropped: either(Fate::Drop),
            doubled_replies: count(Way::Reply, Fate::Double),
            delayed: either(Fate::Delay),
            reordered: either(Fate::Reorder),
            doubled_requests: count(Way::Request, Fate::Double),
            cut: either(Fate::Cut),
            cut_in_frame: either(Fate::CutInFrame),
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        // An error here means that the proxy has panicked.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

async fn accept(socket: TcpListener, shared: Arc<Shared>) -> std::convert::Infallible {
    let mut connections = tokio::task::JoinSet::new();
    for number in 0.. {
        let (near, _) = socket.accept().await.expect("a connection to the proxy");
        let shared = Arc::clone(&shared);
        // The result is ignored, because the callers and the task must handle any end of a connection.
        connections.spawn(async move { connection(near, &shared, number).await });
        while connections.try_join_next().is_some() {}
    }
    unreachable!("fewer than 2^64 connections")
}

async fn connection(near: TcpStream, shared: &Shared, number: u64) -> io::Result<()> {
    let far = TcpStream::connect(&shared.target).await?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    // If one direction is cut, both end. If one direction is closed, the other one stays open.
    tokio::try_join!(
        pump(near_read, far_write, Way::Request, shared, number),
        pump(far_read, near_write, Way::Reply, shared, number),
    )?;
    Ok(())
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    way: Way,
    shared: &Shared,
    number: u64,
) -> io::Result<()> {
    let mut dice = Dice::new(shared.seed, number, way);
    // The first frame of each direction is part of the handshake: Hello, Welcome, or a refusal.
    let mut frame = Vec::new();
    if read_frame(&mut from, None, &mut frame).await?.is_some() {
        to.write_all(&frame).await?;
    }
    let mut held: Option<Vec<u8>> = None;
    loop {
        let first = match &held {
            None => read_some(&mut from).await?,
            Some(_) => match timeout(OVERTAKE, read_some(&mut from)).await {
                Ok(first) => first?,
                Err(_) => {
                    to.write_all(&held.take().expect("a frame is held")).await?;
                    continue;
                }
            },
        };
        let kind = match first {
            Some(first) => read_frame(&mut from, Some(first), &mut frame).await?,
            None => None,
        };
        let Some(kind) = kind else {
            if let Some(held) = held {
                to.write_all(&held).await?;
            }
            return to.shutdown().await;
        };
        let fate = shared.fate(&mut dice, way, kind);
        let fate = if fate == Fate::Reorder && held.is_some() { Fate::Pass } else { fate };
        shared.counts[way as usize][fate as usize].fetch_add(1, Ordering::Relaxed);
        match fate {
            Fate::Pass => to.write_all(&frame).await?,
            Fate::Drop => {}
            Fate::Double => {
                to.write_all(&frame).await?;
                to.write_all(&frame).await?;
            }
            Fate::Delay => {
                tokio::time::sleep(Duration::from_millis(1 + dice.roll(DELAY_MS_MAX))).await;
                to.write_all(&frame).await?;
            }
            Fate::Reorder => {
                held = Some(std::mem::take(&mut frame));
                continue;
            }
            Fate::Cut => return Err(io::ErrorKind::ConnectionReset.into()),
            Fate::CutInFrame => {
                let part = 1 + dice.roll(frame.len() as u64 - 1) as usize;
                to.write_all(&frame[..part]).await?;
                return Err(io::ErrorKind::ConnectionReset.into());
            }
        }
        if let Some(held) = held.take() {
            to.write_all(&held).await?;
        }
    }
}

impl Shared {
    fn fate(&self, dice: &mut Dice, way: Way, kind: u16) -> Fate {
        let rates = &self.rates;
        let either = [(rates.cut, Fate::Cut), (rates.cut_in_frame, Fate::CutInFrame)];
        let own = match way {
            Way::Request => &[(rates.double_request, Fate::Double)][..],
            Way::Reply => &[
                (rates.drop_reply, Fate::Drop),
                (rates.double_reply, Fate::Double),
                (rates.delay_reply, Fate::Delay),
                (rates.reorder_reply, Fate::Reorder),
            ],
        };
        // Heartbeats have only one kind of fault: they are dropped.
        let own = if kind == HEARTBEAT { &[(rates.drop_reply, Fate::Drop)] } else { own };
        let either = if kind == HEARTBEAT { &[][..] } else { &either };
        let mut rest = dice.roll(1000);
        if self.quiet.load(Ordering::Relaxed) {
            return Fate::Pass;
        }
        for &(rate, fate) in own.iter().chain(either) {
            if rest < rate {
                return fate;
            }
            rest -= rate;
        }
        Fate::Pass
    }
}

/// The bytes of a frame's prefix that have been read, and their number.
type Begun = ([u8; PREFIX_BYTES], usize);

/// Reads the first bytes of the next frame; returns `None` at the end of the stream. No bytes are lost if
/// the future is dropped.
async fn read_some(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Begun>> {
    let mut prefix = [0; PREFIX_BYTES];
    let bytes = from.read(&mut prefix).await?;
    Ok((bytes > 0).then_some((prefix, bytes)))
}

/// Reads a whole frame and returns its kind; `None` at the end of the stream.
async fn read_frame(
    from: &mut (impl AsyncRead + Unpin),
    begun: Option<Begun>,
    frame: &mut Vec<u8>,
) -> io::Result<Option<u16>> {
    let begun = match begun {
        Some(begun) => Some(begun),
        None => read_some(from).await?,
    };
    let Some((mut prefix, bytes)) = begun else { return Ok(None) };
    from.read_exact(&mut prefix[bytes..]).await?;
    let decoded = Prefix::decode(&prefix, &Limits::default()).map_err(io::Error::other)?;
    frame.resize(PREFIX_BYTES + decoded.header_bytes as usize + decoded.payload_bytes as usize, 0);
    frame[..PREFIX_BYTES].copy_from_slice(&prefix);
    from.read_exact(&mut frame[PREFIX_BYTES..]).await?;
    Ok(Some(decoded.kind))
}

/// The generator SplitMix64. The same seed, connection and frames give the same fates.
struct Dice(u64);

impl Dice {
    fn new(seed: u64, connection: u64, way: Way) -> Self {
        let mut dice = Self(seed ^ (2 * connection + way as u64).wrapping_mul(0xa076_1d64_78bd_642f));
        dice.roll(2);
        dice
    }

    /// Returns a number from 0 to `sides` - 1.
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }
}
