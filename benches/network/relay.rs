//! A relay that passes on each byte of a connection at a fixed time after its arrival. It stands in for the
//! distance between two hosts. It keeps a bounded number of bytes of each direction, and while the receiver
//! does not read, it reads no more than that. This module must not depend on what the bytes are.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use pushpull_transport::Congestion;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep_until};

/// The number of bytes that are read at once.
const CHUNK_BYTES: usize = 256 << 10;
/// The bytes that are kept beside those that travel: the clock of the relay has a resolution of 1 ms, and the
/// receiver may need a moment.
const SLACK_BYTES: usize = 2 << 20;
/// The number of chunks that are kept of each direction of a connection.
const CHUNKS_MAX: usize = 8192;

/// Returns the number of bytes that are kept of each direction of a connection.
pub(crate) fn bytes_max(bits_per_second: f64, delay: Duration) -> usize {
    (bits_per_second / 8.0 * delay.as_secs_f64()) as usize + SLACK_BYTES
}

/// Bytes that wait until they are due.
struct Chunk {
    due: Instant,
    bytes: Vec<u8>,
    /// Returns the room when the bytes have been passed on.
    _room: OwnedSemaphorePermit,
}

/// Relays the connections to each first address of the routes to the second address.
pub(crate) async fn run(
    routes: &[(String, String)],
    delay: Duration,
    bytes_max: usize,
) -> anyhow::Result<()> {
    let mut accepting = tokio::task::JoinSet::new();
    for (address, target) in routes {
        let (listener, target) = (TcpListener::bind(address).await?, target.clone());
        accepting.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // A connection that fails ends for both of its peers.
                tokio::spawn(connect(stream, target.clone(), delay, bytes_max));
            }
        });
    }
    println!("ready");
    while accepting.join_next().await.is_some() {}
    anyhow::bail!("the relay cannot accept connections")
}

async fn connect(one: TcpStream, target: String, delay: Duration, bytes_max: usize) -> anyhow::Result<()> {
    let target = target.parse()?;
    let socket = TcpSocket::new_v4()?;
    // The way on is over loopback, and should cost as little time as possible.
    Congestion::Automatic.choose(&socket, std::net::Ipv4Addr::LOCALHOST.into())?;
    let other = socket.connect(target).await?;
    one.set_nodelay(true)?;
    other.set_nodelay(true)?;
    let ((from_one, to_one), (from_other, to_other)) = (one.into_split(), other.into_split());
    tokio::try_join!(
        carry(from_one, to_other, delay, bytes_max),
        carry(from_other, to_one, delay, bytes_max)
    )?;
    Ok(())
}

/// Carries the bytes of one direction until its end.
async fn carry(from: OwnedReadHalf, to: OwnedWriteHalf, delay: Duration, bytes_max: usize) -> io::Result<()> {
    let (sender, receiver) = mpsc::channel(CHUNKS_MAX);
    tokio::try_join!(take(from, sender, delay, bytes_max), give(to, receiver))?;
    Ok(())
}

async fn take(
    mut from: OwnedReadHalf,
    sender: mpsc::Sender<Chunk>,
    delay: Duration,
    bytes_max: usize,
) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let room = Arc::new(Semaphore::new(bytes_max.max(CHUNK_BYTES)));
    loop {
        let room = Arc::clone(&room).acquire_many_owned(CHUNK_BYTES as u32).await;
        let mut room = room.map_err(io::Error::other)?;
        let bytes = from.read(&mut buffer).await?;
        drop(room.split(CHUNK_BYTES - bytes));
        // The end is an empty chunk, which is as late as the bytes before it.
        let chunk = Chunk { due: Instant::now() + delay, bytes: buffer[..bytes].to_vec(), _room: room };
        if sender.send(chunk).await.is_err() || bytes == 0 {
            return Ok(());
        }
    }
}

async fn give(mut to: OwnedWriteHalf, mut receiver: mpsc::Receiver<Chunk>) -> io::Result<()> {
    while let Some(chunk) = receiver.recv().await {
        sleep_until(chunk.due).await;
        to.write_all(&chunk.bytes).await?;
    }
    to.shutdown().await
}
