//! The Unix sockets of local links.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::net::{UnixListener, UnixStream};

use super::greeting::{Local, greet};
use super::names::{is_here, names_of, own_name};
use crate::buffer::BufferPool;
use crate::link::Link;
use crate::spin::Spin;
use crate::stream::{EarlyRead, Receiver, Sender};

/// The largest number of links that are being greeted at a time.
const GREETED_MAX: usize = 64;

/// The settings of local links.
#[derive(Clone, Debug)]
pub(crate) struct LocalConfig {
    /// The memory that this end shares.
    pub pool: BufferPool,
    /// How long a peer may be silent before it counts as lost.
    pub lost_after: Duration,
    /// How long an end looks for the next message before its thread sleeps.
    pub spin: Duration,
}

/// Listens for tasks of this host.
pub(crate) struct Listening {
    socket: UnixListener,
    config: LocalConfig,
    /// The links that have been accepted, and whose ends greet each other.
    greeted: FuturesUnordered<BoxFuture<'static, io::Result<Link>>>,
}

impl Listening {
    /// Listens for tasks of this host that look for the TCP address `address`.
    ///
    /// # Errors
    /// Returns an error if another process has the address's name.
    pub(crate) fn new(address: SocketAddr, config: LocalConfig) -> io::Result<Self> {
        let socket = UnixListener::bind(own_name(address))?;
        Ok(Self { socket, config, greeted: FuturesUnordered::new() })
    }

    /// Waits for the next link. Nothing is lost if the wait is given up.
    ///
    /// # Errors
    /// Returns an error if the system cannot accept a link.
    pub(crate) async fn accept(&mut self) -> io::Result<Link> {
        loop {
            tokio::select! {
                biased;
                accepted = self.socket.accept(), if self.greeted.len() < GREETED_MAX => {
                    let (stream, _) = accepted?;
                    let config = self.config.clone();
                    self.greeted.push(Box::pin(async move { link(stream, &config).await }));
                }
                Some(link) = self.greeted.next() => match link {
                    Ok(link) => return Ok(link),
                    // The other end then uses TCP.
                    Err(error) => tracing::debug!(%error, "refused a link within this host"),
                },
            }
        }
    }
}

/// Connects to the task that listens at a TCP address, if it is a task of this host and this user and accepts
/// local links.
pub(crate) async fn connect(address: SocketAddr, config: &LocalConfig) -> Option<Link> {
    if !is_here(address.ip()) {
        return None;
    }
    for name in names_of(address) {
        let Ok(stream) = UnixStream::connect(name).await else { continue };
        match link(stream, config).await {
            Ok(link) => return Some(link),
            Err(error) => tracing::debug!(%error, "no link within this host; TCP is used"),
        }
    }
    None
}

async fn link(mut stream: UnixStream, config: &LocalConfig) -> io::Result<Link> {
    let LocalConfig { pool, lost_after, spin } = config;
    let Local { lender, borrower, peer } = greet(&mut stream, pool).await?;
    let (read, write) = stream.into_split();
    let spin = Spin::new(*spin);
    let read = EarlyRead::new(read, spin.clone());
    let receiver = Receiver::local(read, pool.clone(), *lost_after, spin.clone(), borrower);
    // The kernel has said that the other end belongs to this user, so it needs no certificate.
    let sender = Box::new(Sender::local(write, spin, lender));
    Ok(Link { sender, receiver: Box::new(receiver), peer, proven: None })
}
