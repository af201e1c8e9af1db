//! The raw line: what one socket carries through the same interfaces and the same relay, without a parameter
//! server.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use crate::child::Task;
use crate::sides::Sides;

/// The size of one write.
const WRITE_BYTES: usize = 1 << 20;
/// The number of round trips that are measured.
const PINGS: usize = 20;

/// What a connection is for. Its number is the first byte on the connection.
#[derive(Clone, Copy)]
enum Use {
    /// The server sends back every byte.
    Ping = 0,
    /// The client sends.
    Up = 1,
    /// Both send.
    Both = 2,
}

/// What the line has carried in one round.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Line {
    /// The median time to and fro of one byte, in milliseconds.
    pub round_trip_ms: f64,
    /// Gbit/s from the workers' side to the ps's side, while nothing else is sent.
    pub up_gbit_s: f64,
    /// Gbit/s in the same direction, while the other side sends as well.
    pub both_up_gbit_s: f64,
    /// Gbit/s in the other direction at the same time.
    pub both_down_gbit_s: f64,
}

/// Measures the line to the server at `address`.
pub(crate) async fn measure(sides: &Sides, address: &str, seconds: f64) -> anyhow::Result<Line> {
    let task = Task::LineClient { address: address.to_owned(), seconds };
    let mut client = sides.start_there(&task).await?;
    Ok(serde_json::from_str(&client.line().await?)?)
}

/// Serves clients, one after the other.
pub(crate) async fn serve(address: &str) -> anyhow::Result<()> {
    let listener = TcpListener::bind(address).await?;
    println!("ready");
    loop {
        let (stream, _) = listener.accept().await?;
        if let Err(error) = serve_one(stream).await {
            eprintln!("the raw line failed: {error}");
        }
    }
}

async fn serve_one(mut stream: TcpStream) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let wanted = stream.read_u8().await?;
    let seconds = stream.read_f64().await?;
    match wanted {
        0 => {
            let mut byte = [0];
            while stream.read(&mut byte).await? > 0 {
                stream.write_all(&byte).await?;
            }
        }
        1 => {
            read_all(&mut stream).await?;
            stream.write_u8(1).await?;
        }
        2 => {
            let (mut from, to) = stream.into_split();
            let (read, written) = tokio::join!(read_all(&mut from), write_for(to, seconds));
            read?;
            written?;
        }
        other => bail!("the use of a connection is {other}, expected at most 2"),
    }
    Ok(())
}

/// Reads to the end, and returns the number of bytes.
async fn read_all(from: &mut (impl AsyncReadExt + Unpin)) -> anyhow::Result<u64> {
    let (mut buffer, mut bytes) = (vec![0; WRITE_BYTES], 0);
    loop {
        match from.read(&mut buffer).await? {
            0 => return Ok(bytes),
            more => bytes += more as u64,
        }
    }
}

/// Writes for this time, ends the direction, and returns the number of bytes.
async fn write_for(mut to: OwnedWriteHalf, seconds: f64) -> anyhow::Result<u64> {
    let (buffer, mut bytes, began) = (vec![1; WRITE_BYTES], 0, Instant::now());
    while began.elapsed() < Duration::from_secs_f64(seconds) {
        to.write_all(&buffer).await?;
        bytes += buffer.len() as u64;
    }
    to.shutdown().await?;
    Ok(bytes)
}

/// Measures the line, and prints the result.
pub(crate) async fn run_client(address: &str, seconds: f64) -> anyhow::Result<()> {
    println!("ready");
    let round_trip_ms = ping(address).await?;
    let up_gbit_s = up(address, seconds).await?;
    let (both_up_gbit_s, both_down_gbit_s) = both(address, seconds).await?;
    let line = Line { round_trip_ms, up_gbit_s, both_up_gbit_s, both_down_gbit_s };
    println!("{}", serde_json::to_string(&line)?);
    Ok(())
}

async fn connect(address: &str, wanted: Use, seconds: f64) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect(address).await;
    let mut stream =
        stream.with_context(|| format!("cannot connect to the raw line's server at {address}"))?;
    stream.set_nodelay(true)?;
    stream.write_u8(wanted as u8).await?;
    stream.write_f64(seconds).await?;
    Ok(stream)
}

fn gbit_s(bytes: u64, began: Instant) -> f64 {
    bytes as f64 * 8.0 / 1e9 / began.elapsed().as_secs_f64()
}

async fn ping(address: &str) -> anyhow::Result<f64> {
    let mut stream = connect(address, Use::Ping, 0.0).await?;
    let mut times = Vec::new();
    for _ in 0..PINGS {
        let sent = Instant::now();
        stream.write_u8(1).await?;
        stream.read_u8().await?;
        times.push(sent.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[PINGS / 2])
}

async fn up(address: &str, seconds: f64) -> anyhow::Result<f64> {
    let (mut from, to) = connect(address, Use::Up, seconds).await?.into_split();
    let began = Instant::now();
    let bytes = write_for(to, seconds).await?;
    // The server confirms that it has read everything.
    from.read_u8().await?;
    Ok(gbit_s(bytes, began))
}

/// Returns the Gbit/s to the server and those from the server.
async fn both(address: &str, seconds: f64) -> anyhow::Result<(f64, f64)> {
    let (from, to): (OwnedReadHalf, OwnedWriteHalf) =
        connect(address, Use::Both, seconds).await?.into_split();
    let began = Instant::now();
    let down = async |mut from: OwnedReadHalf| -> anyhow::Result<f64> {
        let bytes = read_all(&mut from).await?;
        Ok(gbit_s(bytes, began))
    };
    // What was written has arrived when the buffers of the sockets are empty, at most a moment later; the
    // time of the other direction, which ends at the same time, is a bound for both.
    let (bytes, down) = tokio::join!(write_for(to, seconds), down(from));
    Ok((gbit_s(bytes?, began), down?))
}
