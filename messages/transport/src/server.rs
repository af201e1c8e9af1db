//! The answering end: accepts connections, shakes hands, bounds what each may ask, and hands requests to a service.
//!
//! Bad bytes close the one connection they came on, with a counted, named error; nobody else notices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::connection::{Connection, FrameReceiver, FrameSender, Listener};
use super::counters::{ConnectionCounters, ServerObserver};
use super::handshake::Identity;
use super::liveness;
use crate::buffer::{Budget, Payload};
use crate::wire::{Envelope, Limits, WireError};
use pushpull_messages::id::{Incarnation, RequestId, TaskId};
use pushpull_messages::message::{Hello, Message, PROTOCOL, Refusal, RefusalCode, Welcome};

/// What a server takes at most.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Shards this task runs, as it tells its peers.
    pub shards: u32,
    /// What a frame may be after the handshake.
    pub limits: Limits,
    /// Requests on one connection that are not answered yet; beyond that it is not read from.
    pub requests_max: u32,
    /// Payload bytes of all connections together that are not answered yet; beyond that none is read from.
    pub in_flight_bytes_max: u64,
    /// Connections at a time; beyond that the next waits to be accepted.
    pub connections_max: u32,
    /// So long may a stranger take to introduce itself, in milliseconds.
    pub handshake_ms: u64,
    /// So long may replies take to be written when the server stops, in milliseconds.
    pub drain_ms: u64,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            shards: 0,
            limits: Limits::default(),
            requests_max: 16,
            in_flight_bytes_max: 8 << 30,
            connections_max: 4096,
            handshake_ms: 10_000,
            drain_ms: 5_000,
        }
    }
}

impl ServerConfig {
    /// At least two for every shard: a worker calls all of them at once, and while the chief waits for a save of each it
    /// has more to say.
    fn requests_max(&self) -> u32 {
        self.requests_max.max(self.shards.saturating_mul(2)).max(1)
    }
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Which task.
    pub task: TaskId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Which of this server's connections.
    pub connection: u64,
    /// Where it calls from.
    pub address: String,
    /// Where it says that it can be observed.
    pub http: Option<String>,
}

/// What answers requests. Called on the connection's task: it hands the work on and returns at once.
pub trait Service: Send + Sync + 'static {
    /// One more decision about a peer that fits the cluster, before it is welcomed.
    ///
    /// # Errors
    /// Why it is not wanted.
    fn admit(&self, peer: &Peer) -> Result<(), Refusal> {
        let _ = peer;
        Ok(())
    }

    /// A request. The reply may be sent at any time, from anywhere.
    fn call(&self, peer: &Peer, message: Message, payload: Payload, reply: Reply);

    /// The connection is gone.
    fn disconnected(&self, peer: &Peer) {
        let _ = peer;
    }
}

/// The right, and the duty, to answer one request. Dropped without an answer, it refuses by itself.
#[derive(Debug)]
pub struct Reply(Option<Open>);

#[derive(Debug)]
struct Open {
    request: RequestId,
    outgoing: mpsc::Sender<Outgoing>,
    permit: OwnedSemaphorePermit,
}

/// A reply on its way; the permit is given back when it has been written.
struct Outgoing {
    envelope: Envelope,
    permit: OwnedSemaphorePermit,
}

impl Reply {
    /// Answers.
    pub fn send(mut self, message: impl Into<Message>, payload: Payload) {
        self.deliver(message.into(), payload);
    }

    /// Answers that it was not done.
    pub fn refuse(self, code: RefusalCode, reason: impl std::fmt::Display) {
        self.send(Refusal::new(code, reason), Payload::EMPTY);
    }

    fn deliver(&mut self, message: Message, payload: Payload) {
        if let Some(Open { request, outgoing, permit }) = self.0.take() {
            let envelope = Envelope { request, message, payload };
            // The queue has a place for every permit, so this fails only where the connection is gone.
            let _ = outgoing.try_send(Outgoing { envelope, permit });
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.0.is_some() {
            let refusal = Refusal::new(RefusalCode::Unavailable, "the task ended before it could answer");
            self.deliver(refusal.into(), Payload::EMPTY);
        }
    }
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    stop: watch::Sender<bool>,
    ended: watch::Receiver<bool>,
    guests: watch::Receiver<usize>,
    observer: ServerObserver,
    address: String,
}

impl Server {
    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// What sees its connections, also when it has stopped.
    pub fn observer(&self) -> ServerObserver {
        self.observer.clone()
    }

    /// Waits until no peer that was welcomed is connected any more.
    pub async fn alone(&self) {
        let _ = self.guests.clone().wait_for(|&guests| guests == 0).await;
    }

    /// Accepts and reads no more, writes what has been answered, and closes every connection.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        let _ = self.ended.wait_for(|&ended| ended).await;
    }
}

/// Serves on the current runtime until the handle is stopped or dropped.
pub fn serve(
    listener: Box<dyn Listener>,
    identity: Identity,
    service: Arc<dyn Service>,
    config: ServerConfig,
) -> Server {
    let (stop, stopping) = watch::channel(false);
    let (end, ended) = watch::channel(false);
    let (count, guests) = watch::channel(0);
    let counters = Arc::new(ConnectionCounters::default());
    let address = listener.address();
    let budget = Budget::new(config.in_flight_bytes_max);
    let observer = ServerObserver::new(Arc::clone(&counters), budget.clone());
    let host = Arc::new(Host {
        budget,
        identity,
        service,
        config,
        counters,
        next: AtomicU64::new(1),
        guests: Arc::new(count),
    });
    tokio::spawn(async move {
        accept(listener, host, stopping).await;
        end.send_replace(true);
    });
    Server { stop, ended, guests, observer, address }
}

struct Host {
    identity: Identity,
    service: Arc<dyn Service>,
    budget: Budget,
    config: ServerConfig,
    counters: Arc<ConnectionCounters>,
    next: AtomicU64,
    /// Peers that are welcome and connected.
    guests: Arc<watch::Sender<usize>>,
}

async fn accept(mut listener: Box<dyn Listener>, host: Arc<Host>, mut stopping: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(host.config.connections_max as usize));
    let mut sessions = JoinSet::new();
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await.expect("never closed");
            (listener.accept().await, place)
        };
        let (connection, place) = tokio::select! {
            next = next => next,
            Some(ended) = sessions.join_next() => {
                if let Err(panic) = ended {
                    tracing::error!("a connection's task has panicked: {panic}");
                }
                continue;
            }
            _ = stopping.wait_for(|&stop| stop) => break,
        };
        match connection {
            Ok(connection) => {
                host.counters.accept();
                let (host, stopping) = (Arc::clone(&host), stopping.clone());
                sessions.spawn(async move {
                    let address = connection.peer.clone();
                    let reason = match session(&host, connection, stopping).await {
                        Ok(()) => "closed",
                        Err(error) => {
                            tracing::warn!("closed the connection from {address}: {error}");
                            error.reason()
                        }
                    };
                    host.counters.close(reason);
                    drop(place);
                });
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {
                // The one who dialled has given up already.
            }
            Err(error) => {
                // Out of file descriptors, most likely: others must close before the next can come.
                tracing::error!("cannot accept a connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    while sessions.join_next().await.is_some() {}
}

/// A peer that reads must take a reply within this time; one that does not holds memory, and is let go.
fn write_limit(bytes: usize) -> Duration {
    const PATIENCE: Duration = Duration::from_secs(30);
    const BYTES_PER_SECOND_MIN: u64 = 1 << 20;
    PATIENCE + Duration::from_secs(bytes as u64 / BYTES_PER_SECOND_MIN)
}

/// Why a session ended other than by its peer's closing.
#[derive(Debug, thiserror::Error)]
enum SessionError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("no handshake within {0} ms")]
    NoHandshake(u64),
    #[error("the first frame is {0}, not Hello")]
    NotHello(&'static str),
    #[error("refused: {0}")]
    Refused(Refusal),
}

impl SessionError {
    const fn reason(&self) -> &'static str {
        match self {
            Self::Wire(error) => error.reason(),
            Self::NoHandshake(_) => "no_handshake",
            Self::NotHello(_) => "not_hello",
            Self::Refused(_) => "refused",
        }
    }
}

async fn session(
    host: &Host,
    connection: Connection,
    mut stopping: watch::Receiver<bool>,
) -> Result<(), SessionError> {
    let Connection { mut sender, mut receiver, peer: address } = connection;
    let limit = Duration::from_millis(host.config.handshake_ms);
    let shaken = tokio::select! {
        shaken = timeout(limit, handshake(host, &mut *sender, &mut *receiver, address)) => shaken,
        _ = stopping.wait_for(|&stop| stop) => return Ok(()),
    };
    let Some(guest) = shaken.map_err(|_| SessionError::NoHandshake(host.config.handshake_ms))?? else {
        return Ok(());
    };
    receiver.trust(host.config.limits, Some(host.budget.clone()));
    Ok(exchange(host, &guest.peer, sender, receiver, stopping).await?)
}

/// A peer that the service has admitted: however its session ends, the service hears of it.
struct Guest {
    peer: Peer,
    service: Arc<dyn Service>,
    guests: Arc<watch::Sender<usize>>,
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.service.disconnected(&self.peer);
        self.guests.send_modify(|guests| *guests -= 1);
    }
}

async fn handshake(
    host: &Host,
    sender: &mut dyn FrameSender,
    receiver: &mut dyn FrameReceiver,
    address: String,
) -> Result<Option<Guest>, SessionError> {
    let mut answer = async |request: RequestId, message: Message| {
        sender.send(Envelope { request, message, payload: Payload::EMPTY }).await
    };
    let (request, message) = match receiver.receive().await {
        Ok(Some(Envelope { request, message, .. })) => (request, message),
        Ok(None) => return Ok(None),
        Err(error @ WireError::Version { .. }) => {
            // It cannot read this either, but it sees our version, and names both.
            answer(RequestId(0), Refusal::new(RefusalCode::Protocol, &error).into()).await?;
            return Err(error.into());
        }
        Err(error) => return Err(error.into()),
    };
    let hello = match Hello::try_from(message) {
        Ok(hello) => hello,
        Err(other) => {
            let reason = format!("the first frame must be Hello, and is {}", other.name());
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
    };
    if let Err(refusal) = host.identity.admit(&hello).and_then(|()| host.service.admit(&peer)) {
        answer(request, refusal.clone().into()).await?;
        return Err(SessionError::Refused(refusal));
    }
    host.guests.send_modify(|guests| *guests += 1);
    let guest = Guest { peer, service: Arc::clone(&host.service), guests: Arc::clone(&host.guests) };
    let welcome = Welcome {
        protocol: PROTOCOL,
        task: host.identity.task,
        incarnation: host.identity.incarnation,
        shards: host.config.shards,
        payload_bytes_max: host.config.limits.payload_bytes_max,
        requests_max: host.config.requests_max(),
        http: host.identity.http.clone(),
    };
    answer(request, welcome.into()).await?;
    Ok(Some(guest))
}

/// Reads requests and writes replies until the peer closes, something breaks, or the server stops.
async fn exchange(
    host: &Host,
    peer: &Peer,
    mut sender: Box<dyn FrameSender>,
    mut receiver: Box<dyn FrameReceiver>,
    mut stopping: watch::Receiver<bool>,
) -> Result<(), WireError> {
    let requests_max = host.config.requests_max() as usize;
    let (outgoing, mut queue) = mpsc::channel::<Outgoing>(requests_max);
    let permits = Arc::new(Semaphore::new(requests_max));
    let mut write = std::pin::pin!(async move {
        while let Some(next) = liveness::next(&mut queue).await {
            let (envelope, permit) = match next {
                Ok(Outgoing { envelope, permit }) => (envelope, Some(permit)),
                Err(heartbeat) => (heartbeat, None),
            };
            let (bytes, began) = (envelope.payload.bytes(), Instant::now());
            let limit = write_limit(bytes);
            match timeout(limit, sender.send(envelope)).await {
                Ok(sent) => sent?,
                Err(_) => return Err(WireError::Stalled(limit.as_secs())),
            }
            if permit.is_some() {
                host.counters.send(bytes, began.elapsed());
            }
        }
        Ok(())
    });
    let read = async move {
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
                received = request => received?,
                _ = stopping.wait_for(|&stop| stop) => return Ok::<bool, WireError>(true),
            };
            let Some((Envelope { request, message, payload }, permit)) = received else {
                return Ok(false);
            };
            host.counters.received.count(payload.bytes());
            let reply = Reply(Some(Open { request, outgoing: outgoing.clone(), permit }));
            host.service.call(peer, message, payload, reply);
        }
    };
    let stopped: bool = tokio::select! {
        read = read => read?,
        write = &mut write => return write,
    };
    if stopped {
        // The reading half has dropped its sender: this ends when every request has been answered.
        return timeout(Duration::from_millis(host.config.drain_ms), write).await.unwrap_or(Ok(()));
    }
    Ok(())
}
