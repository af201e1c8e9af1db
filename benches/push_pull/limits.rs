//! The limits of the machine: what a socket, a message and a copy cost without any parameter server.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::case::{Limit, Variables};
use crate::child::{self, Measured, Task, congestion, report, wait_to_begin};
use crate::figures::percentiles;
use crate::ports::free_address;
use crate::usage;

/// The size of one write and of one buffer. There are as many buffers as variables in [`Variables::Dense`],
/// so that the caches flatter the raw socket as little as they flatter the parameter server.
const BUFFER_BYTES: usize = 4_000_000;
const MESSAGE_BYTES: usize = 4096;

/// Measures a limit for about this time.
pub(crate) async fn measure(limit: Limit, seconds: f64) -> anyhow::Result<Measured> {
    let pairs: Vec<(Option<Task>, Task)> = match limit {
        Limit::Sockets(pairs) => (0..pairs)
            .map(|_| free_address())
            .map(|at| (Some(Task::Sink(at.clone())), Task::Source(at)))
            .collect(),
        Limit::PingPong => {
            let at = free_address();
            vec![(Some(Task::Pong(at.clone())), Task::Ping(at))]
        }
        Limit::Copy => vec![(None, Task::Copy)],
    };
    let (mut servers, mut clients) = (Vec::new(), Vec::new());
    for (server, client) in pairs {
        if let Some(server) = server {
            let mut server = child::start(&server)?;
            server.ready().await?;
            servers.push(server);
        }
        let mut client = child::start(&client)?;
        client.ready().await?;
        clients.push(client);
    }
    let all = child::measure(&mut clients, seconds).await?;
    // The rates are added, as those of the workers are.
    let rate = all.iter().map(|one| one.bytes as f64 / one.seconds).sum::<f64>();
    let first = all.first().cloned().context("at least one process")?;
    Ok(Measured { bytes: (rate * first.seconds) as u64, ..first })
}

fn buffers() -> Vec<Vec<u8>> {
    (0..Variables::Dense.elements().len()).map(|at| vec![at as u8 + 1; BUFFER_BYTES]).collect()
}

/// Reads all that one peer writes, and then confirms it with a byte.
pub(crate) fn sink(address: &str) -> anyhow::Result<()> {
    let listener = TcpListener::bind(address)?;
    congestion().choose(&listener, listener.local_addr()?.ip())?;
    let mut buffers = buffers();
    println!("ready");
    let (mut stream, _) = listener.accept()?;
    'all: loop {
        for buffer in &mut buffers {
            let mut read = 0;
            while read < BUFFER_BYTES {
                match stream.read(&mut buffer[read..])? {
                    0 => break 'all,
                    more => read += more,
                }
            }
        }
    }
    stream.write_all(&[1])?;
    Ok(())
}

async fn connect(address: &str) -> anyhow::Result<TcpStream> {
    let address = address.parse()?;
    let socket = TcpSocket::new_v4()?;
    congestion().choose(&socket, Ipv4Addr::LOCALHOST.into())?;
    let stream = socket.connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Writes buffers until the time is over, and waits until the peer has read them.
pub(crate) async fn source(address: &str) -> anyhow::Result<()> {
    let mut stream = connect(address).await?.into_std()?;
    stream.set_nonblocking(false)?;
    let buffers = buffers();
    // The first pass takes the page faults, as the first exchanges of a worker do.
    for buffer in &buffers {
        stream.write_all(buffer)?;
    }
    let limit = Duration::from_secs_f64(wait_to_begin()?);
    let (began, cpu, mut bytes) = (Instant::now(), usage::cpu_of_self()?, 0);
    while began.elapsed() < limit {
        for buffer in &buffers {
            stream.write_all(buffer)?;
            bytes += buffer.len() as u64;
        }
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    stream.read_exact(&mut [0])?;
    let (seconds, cpu_s) = (began.elapsed().as_secs_f64(), usage::cpu_of_self()? - cpu);
    report(&Measured { seconds, bytes, cpu_s, ..Measured::default() })
}

/// Answers each message with one of the same size.
pub(crate) async fn pong(address: &str) -> anyhow::Result<()> {
    let listener = tokio::net::TcpListener::bind(address).await?;
    congestion().choose(&listener, listener.local_addr()?.ip())?;
    println!("ready");
    let (mut stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    let mut message = [0; MESSAGE_BYTES];
    while stream.read_exact(&mut message).await.is_ok() {
        stream.write_all(&message).await?;
    }
    Ok(())
}

/// Sends messages, and waits for the answer to each.
pub(crate) async fn ping(address: &str) -> anyhow::Result<()> {
    let mut stream = connect(address).await?;
    let mut message = [7; MESSAGE_BYTES];
    let limit = Duration::from_secs_f64(wait_to_begin()?);
    let (began, cpu, mut times) = (Instant::now(), usage::cpu_of_self()?, Vec::new());
    while began.elapsed() < limit {
        let sent = Instant::now();
        stream.write_all(&message).await?;
        stream.read_exact(&mut message).await?;
        times.push(sent.elapsed());
    }
    let (seconds, cpu_s) = (began.elapsed().as_secs_f64(), usage::cpu_of_self()? - cpu);
    let bytes = (2 * times.len() * MESSAGE_BYTES) as u64;
    report(&Measured { seconds, bytes, times_us: percentiles(times), cpu_s, peak_bytes: 0 })
}

/// Copies buffers in memory with one thread.
pub(crate) fn copy() -> anyhow::Result<()> {
    let (from, mut to) = (buffers(), buffers());
    let limit = Duration::from_secs_f64(wait_to_begin()?);
    let (began, mut bytes) = (Instant::now(), 0);
    while began.elapsed() < limit {
        for (to, from) in to.iter_mut().zip(&from) {
            to.copy_from_slice(std::hint::black_box(from));
            bytes += from.len() as u64;
        }
    }
    std::hint::black_box(&to);
    report(&Measured { seconds: began.elapsed().as_secs_f64(), bytes, ..Measured::default() })
}
