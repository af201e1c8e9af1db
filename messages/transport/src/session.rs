//! A session: the Tokio task that serves one connection. It performs the handshake, limits the number of
//! requests in flight, and hands each request to the service, together with a handle for the answer. Invalid
//! bytes close only the connection on which they arrived; the error is counted under its short name.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pushpull_messages::id::RequestId;
use pushpull_messages::message::{Hello, Message, PROTOCOL, Refusal, RefusalCode, Welcome};
use pushpull_messages::observe;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;

use crate::buffer::{Budget, Payload};
use crate::counters::ConnectionCounters;
use crate::handshake::Identity;
use crate::link::{FrameReceiver, FrameSender, Link};
use crate::liveness;
use crate::reply::{Outgoing, Reply};
use crate::server_config::ServerConfig;
use crate::service::{Peer, Service};
use crate::wire::{Envelope, WireError};

/// The state that all sessions of a server share.
pub(crate) struct Host {
    pub identity: Identity,
    pub service: Arc<dyn Service>,
    pub budget: Budget,
    pub config: ServerConfig,
    pub counters: Arc<ConnectionCounters>,
    /// The number that the next connection gets.
    pub next: AtomicU64,
    /// The number of connected peers whose handshake succeeded.
    pub peers: Arc<watch::Sender<usize>>,
}

/// The reason why a session ended before the peer closed the link.
#[derive(Debug, thiserror::Error)]
enum SessionError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("no handshake within {0} ms")]
    NoHandshake(u64),
    #[error("the first frame is {0}, expected Hello")]
    NotHello(&'static str),
    #[error("refused: {0}")]
    Refused(Refusal),
}

impl SessionError {
    /// Returns the short name under which the reason is counted.
    const fn reason(&self) -> &'static str {
        match self {
            Self::Wire(error) => error.reason(),
            Self::NoHandshake(_) => "no_handshake",
            Self::NotHello(_) => "not_hello",
            Self::Refused(_) => "refused",
        }
    }
}

/// Serves one link until the peer closes it, an error occurs, or `stopping` becomes true. Counts the
/// connection and logs errors.
pub(crate) async fn serve_link(host: Arc<Host>, link: Link, stopping: watch::Receiver<bool>) {
    host.counters.accept();
    let address = link.peer.clone();
    let reason = match serve(&host, link, stopping).await {
        Ok(()) => "closed",
        Err(error) => {
            tracing::warn!("closed the connection from {address}: {error}");
            error.reason()
        }
    };
    host.counters.close(reason);
}

async fn serve(host: &Host, link: Link, mut stopping: watch::Receiver<bool>) -> Result<(), SessionError> {
    let Link { mut sender, mut receiver, peer: address } = link;
    let limit = Duration::from_millis(host.config.handshake_ms);
    let shaken = tokio::select! {
        biased;
        shaken = timeout(limit, handshake(host, &mut *sender, &mut *receiver, address)) => shaken,
        _ = stopping.wait_for(|&stop| stop) => return Ok(()),
    };
    let Some(admitted) = shaken.map_err(|_| SessionError::NoHandshake(host.config.handshake_ms))?? else {
        return Ok(());
    };
    receiver.trust(host.config.limits, Some(host.budget.clone()));
    Ok(exchange(host, &admitted.peer, sender, receiver, stopping).await?)
}

/// A peer that the service has admitted. When this guard is dropped, the service is notified that the session
/// has ended.
struct Admitted {
    peer: Peer,
    service: Arc<dyn Service>,
    peers: Arc<watch::Sender<usize>>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.service.disconnected(&self.peer);
        self.peers.send_modify(|peers| *peers -= 1);
    }
}

/// Waits for the peer's hello, and answers with a welcome or a refusal. Returns `None` if the peer closed the
/// link instead of sending a hello.
async fn handshake(
    host: &Host,
    sender: &mut dyn FrameSender,
    receiver: &mut dyn FrameReceiver,
    address: String,
) -> Result<Option<Admitted>, SessionError> {
    let mut answer = async |request: RequestId, message: Message| {
        sender.send(Envelope { request, message, payload: Payload::EMPTY }).await
    };
    let (request, message) = match receiver.receive().await {
        Ok(Some(Envelope { request, message, .. })) => (request, message),
        Ok(None) => return Ok(None),
        Err(error @ WireError::Version { .. }) => {
            // The peer cannot decode this answer. But the answer's prefix has our version, so the peer's
            // error can name both versions.
            answer(RequestId(0), Refusal::new(RefusalCode::Protocol, &error).into()).await?;
            return Err(error.into());
        }
        Err(error) => return Err(error.into()),
    };
    let hello = match Hello::try_from(message) {
        Ok(hello) => hello,
        Err(other) => {
            let reason = format!("the first frame must be Hello, but is {}", other.name());
            answer(request, Refusal::new(RefusalCode::Malformed, reason).into()).await?;
            return Err(SessionError::NotHello(other.name()));
        }
    };
    let connection = host.next.fetch_add(1, Ordering::Relaxed);
    let peer = Peer {
        task: hello.task,
        incarnation: hello.incarnation,
        connection,
        address,
        http: hello.http.clone(),
        nonce: hello.nonce,
    };
    if let Err(refusal) = host.identity.admit(&hello).and_then(|()| host.service.admit(&peer)) {
        answer(request, refusal.clone().into()).await?;
        return Err(SessionError::Refused(refusal));
    }
    host.peers.send_modify(|peers| *peers += 1);
    let admitted = Admitted { peer, service: Arc::clone(&host.service), peers: Arc::clone(&host.peers) };
    let welcome = Welcome {
        protocol: PROTOCOL,
        task: host.identity.task,
        incarnation: host.identity.incarnation,
        shards: host.config.shards,
        payload_bytes_max: host.config.limits.payload_bytes_max,
        requests_max: host.config.requests_max(),
        http: host.identity.http.clone(),
        nonce: host.identity.nonce,
    };
    answer(request, welcome.into()).await?;
    Ok(Some(admitted))
}

/// Reads requests and writes replies until the peer closes the link, an error occurs, or `stopping` becomes
/// true.
async fn exchange(
    host: &Host,
    peer: &Peer,
    sender: Box<dyn FrameSender>,
    receiver: Box<dyn FrameReceiver>,
    stopping: watch::Receiver<bool>,
) -> Result<(), WireError> {
    let (outgoing, queue) = mpsc::channel(host.config.requests_max() as usize);
    let mut write = std::pin::pin!(write_replies(host, sender, queue));
    let stopped = tokio::select! {
        biased;
        read = read_requests(host, peer, receiver, outgoing, stopping) => read?,
        write = &mut write => return write,
    };
    if stopped {
        // The reading half has dropped its sender, so the writing half ends when every request has been
        // answered.
        return timeout(Duration::from_millis(host.config.drain_ms), write).await.unwrap_or(Ok(()));
    }
    Ok(())
}

/// Reads requests and hands them to the service. Returns true if the server is stopping, and false if the
/// peer closed the link.
async fn read_requests(
    host: &Host,
    peer: &Peer,
    mut receiver: Box<dyn FrameReceiver>,
    outgoing: mpsc::Sender<Outgoing>,
    mut stopping: watch::Receiver<bool>,
) -> Result<bool, WireError> {
    let permits = Arc::new(Semaphore::new(host.config.requests_max() as usize));
    loop {
        let request = async {
            let permit = Arc::clone(&permits).acquire_owned().await.expect("never closed");
            loop {
                let received = receiver.receive().await?;
                if !matches!(received, Some(Envelope { message: Message::Heartbeat(_), .. })) {
                    return Ok::<_, WireError>(received.map(|envelope| (envelope, permit)));
                }
            }
        };
        let received = tokio::select! {
            biased;
            // A peer that never pauses must not keep the server from stopping.
            _ = stopping.wait_for(|&stop| stop) => return Ok(true),
            received = request => received?,
        };
        let Some((Envelope { request, message, payload }, permit)) = received else {
            return Ok(false);
        };
        host.counters.received.count(payload.bytes());
        host.service.call(peer, message, payload, Reply::new(request, outgoing.clone(), permit));
    }
}

/// Writes replies, and heartbeats between them, until the queue is closed.
async fn write_replies(
    host: &Host,
    mut sender: Box<dyn FrameSender>,
    mut queue: mpsc::Receiver<Outgoing>,
) -> Result<(), WireError> {
    while let Some(next) = liveness::next(&mut queue).await {
        let (envelope, permit) = match next {
            Ok(Outgoing { envelope, permit }) => (envelope, Some(permit)),
            Err(heartbeat) => (heartbeat, None),
        };
        let (bytes, began) = (envelope.payload.bytes(), observe::now());
        let limit = write_limit(bytes);
        match timeout(limit, sender.send(envelope)).await {
            Ok(sent) => sent?,
            Err(_) => return Err(WireError::Stalled(limit.as_secs())),
        }
        if permit.is_some() {
            host.counters.send(bytes, observe::since(began));
        }
    }
    Ok(())
}

/// Returns the time limit for a peer to read a reply of `bytes` bytes. A slower peer is disconnected, because
/// the unread reply occupies memory.
fn write_limit(bytes: usize) -> Duration {
    const PATIENCE: Duration = Duration::from_secs(30);
    const BYTES_PER_SECOND_MIN: u64 = 1 << 20;
    PATIENCE + Duration::from_secs(bytes as u64 / BYTES_PER_SECOND_MIN)
}
