//! A session: the Tokio task that serves one connection. It performs the handshake, limits the number of
//! requests in flight, and hands each request to the service, together with a handle for the answer. Invalid
//! bytes close only the connection on which they arrived; the error is counted under its short name.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pushpull_identity::Proven;
use pushpull_messages::id::RequestId;
use pushpull_messages::message::{Hello, Message, PROTOCOL, Refusal, RefusalCode, Welcome};
use pushpull_messages::observe;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::accepted::Accepted;
use crate::ahead::Ahead;
use crate::buffer::{Budget, Payload, Segment};
use crate::counters::ConnectionCounters;
use crate::handshake::{Identity, Rejection, proves, role_of};
use crate::late::{AnswerGuard, DecidedAnswer, LateAnswer};
use crate::link::{Begun, FrameReceiver, FrameSender, Link};
use crate::liveness::{self, Lively};
use crate::reply::{Content, Next, Outgoing, Place, Reply};
use crate::server_config::ServerConfig;
use crate::service::{Arrived, Arriving, Peer, Service};
use crate::strangers::Strangers;
use crate::warnings::Warnings;
use crate::wire::{Envelope, Limits, WireError};

/// How long a peer may read nothing of an answer while another answer waits for the memory that the unread
/// answer holds. After this time, the connection is closed.
const YIELD_AFTER: Duration = Duration::from_secs(3);

/// The number of requests of one connection after which the other tasks of the thread have their turn. A
/// service may carry out small requests at once, and a peer may send many of them without waiting.
const TURN_REQUESTS: usize = 16;

/// The state that all sessions of a server share.
pub(crate) struct Host {
    pub identity: Identity,
    pub service: Arc<dyn Service>,
    pub budget: Budget,
    pub config: ServerConfig,
    /// The limits on the first frame of a connection.
    pub hello_limits: Limits,
    pub warnings: Arc<Warnings>,
    pub strangers: Arc<Strangers>,
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
    /// The value is the full reason, for the log. The peer may be told less.
    #[error("refused: {0}")]
    Refused(String),
    /// The task cannot serve the peer yet, which is no fault of the peer. The value is the reason.
    #[error("refused: {0}")]
    Unavailable(String),
}

impl SessionError {
    /// Returns the short name under which the reason is counted.
    const fn reason(&self) -> &'static str {
        match self {
            Self::Wire(error) => error.reason(),
            Self::NoHandshake(_) => "no_handshake",
            Self::NotHello(_) => "not_hello",
            Self::Refused(_) | Self::Unavailable(_) => "refused",
        }
    }
}

/// Serves one link until the peer closes it, an error occurs, or `stopping` becomes true. Counts the
/// connection and logs errors.
pub(crate) async fn serve_link(host: Arc<Host>, accepted: Accepted, stopping: watch::Receiver<bool>) {
    host.counters.accept();
    let address = accepted.peer().to_owned();
    let reason = match serve(&host, accepted, stopping).await {
        Ok(()) => "closed",
        Err(error) => {
            let reason = error.reason();
            host.warnings.limit(&address, reason, || {
                tracing::warn!("closed the connection from {address}: {error}");
            });
            reason
        }
    };
    host.counters.close(reason);
}

async fn serve(
    host: &Host,
    accepted: Accepted,
    mut stopping: watch::Receiver<bool>,
) -> Result<(), SessionError> {
    let stranger = host.strangers.enter(accepted.peer()).map_err(WireError::from)?;
    let limit = Duration::from_millis(host.config.handshake_ms);
    let shake = async {
        // This has a time limit of its own.
        let Link { mut sender, mut receiver, peer: address, proven } = accepted.open().await;
        receiver.trust(host.hello_limits, None);
        let shaken = timeout(limit, handshake(host, &mut *sender, &mut *receiver, (address, proven))).await;
        (shaken.unwrap_or(Err(SessionError::NoHandshake(host.config.handshake_ms))), sender, receiver)
    };
    let shaken = tokio::select! {
        biased;
        shaken = stranger.unless_displaced(shake) => shaken,
        _ = stopping.wait_for(|&stop| stop) => return Ok(()),
    };
    let (shaken, sender, mut receiver) = shaken.map_err(WireError::from)?;
    let passes = match &shaken {
        // A port that several tasks share has counted already what it refuses.
        Ok(_) | Err(SessionError::Unavailable(_) | SessionError::Wire(WireError::TooMany(_))) => true,
        Err(_) => false,
    };
    if passes {
        stranger.pass();
    }
    let Some(admitted) = shaken? else { return Ok(()) };
    receiver.trust(host.config.limits, Some(host.budget.share(host.config.connection_bytes_max)));
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
    (address, proven): (String, Option<Proven>),
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
        Err(error @ WireError::TooLarge { .. }) => {
            // Most likely, the peer has a much longer cluster spec.
            answer(RequestId(0), Identity::other_cluster().into()).await?;
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
        guest: hello.membership().is_none().then(|| role_of(proven.as_ref())),
        incarnation: hello.incarnation,
        connection,
        address,
        http: hello.http.clone(),
        nonce: hello.nonce,
    };
    let admitted = proves(peer.task, peer.guest.is_some(), proven.as_ref())
        .and_then(|()| host.identity.admit(&hello, host.config.guests))
        .and_then(|()| Ok(host.service.admit(&peer)?));
    // The hello is freed before the answer is sent, because it may be large and sending may take a while.
    drop(hello);
    if let Err(Rejection { refusal, details }) = admitted {
        let later = refusal.code == RefusalCode::Unavailable;
        answer(request, refusal.into()).await?;
        return Err(if later { SessionError::Unavailable(details) } else { SessionError::Refused(details) });
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
    let (outgoing, queue) = mpsc::channel(2 * host.config.requests_max() as usize);
    // A peer counts as slow until it has read a late answer in time.
    let slow = AtomicBool::new(true);
    let mut write = std::pin::pin!(write_replies(host, peer, sender, queue, &slow));
    let stopped = tokio::select! {
        biased;
        read = read_requests(host, peer, receiver, (outgoing, &slow), stopping) => read?,
        write = &mut write => return write,
    };
    if stopped {
        // `read_requests` has dropped its sender of the queue, so `write_replies` ends when every request has
        // been answered.
        let drained = timeout(Duration::from_millis(host.config.drain_ms), write).await.unwrap_or(Ok(()));
        // Values that were sent ahead of a reply end with the push that was still arriving.
        return drained
            .or_else(|error| if matches!(error, WireError::Broken(_)) { Ok(()) } else { Err(error) });
    }
    Ok(())
}

/// Reads requests and hands them to the service. Returns true if the server is stopping, and false if the
/// peer closed the link.
async fn read_requests(
    host: &Host,
    peer: &Peer,
    mut receiver: Box<dyn FrameReceiver>,
    (outgoing, slow): (mpsc::Sender<Next>, &AtomicBool),
    mut stopping: watch::Receiver<bool>,
) -> Result<bool, WireError> {
    let permits = Arc::new(Semaphore::new(host.config.requests_max() as usize));
    // The last two large payloads, and the number of requests since the last turn of others.
    let (mut last, mut turn) = ([None; 2], 0);
    loop {
        let request = async {
            let permit = Arc::clone(&permits).acquire_owned().await.expect("never closed");
            loop {
                let (envelope, bytes) = match receiver.begin().await? {
                    Some(Begun::Whole(Envelope { message: Message::Heartbeat(_), .. })) => continue,
                    Some(Begun::Whole(envelope)) => {
                        let bytes = envelope.payload.bytes();
                        (envelope, bytes)
                    }
                    Some(Begun::Head { envelope, lengths }) => {
                        let slow = slow.load(Ordering::Relaxed);
                        let alone = permits.available_permits() + 1 == host.config.requests_max() as usize;
                        let ahead = alone.then(|| Ahead::new(envelope.request, outgoing.clone(), slow));
                        let (message, lengths) = (&envelope.message, &lengths[..]);
                        let both = last[0].zip(last[1]).map(<[Arrived; 2]>::from);
                        let arriving = Arriving { message, lengths, last: both, ahead: ahead.as_ref() };
                        let payload = read_payload(host, peer, &mut *receiver, arriving, &mut last);
                        let bytes = lengths.iter().sum::<u64>() as usize;
                        (Envelope { payload: payload.await?, ..envelope }, bytes)
                    }
                    None => return Ok(None),
                };
                return Ok::<_, WireError>(Some((envelope, bytes, permit)));
            }
        };
        let received = tokio::select! {
            biased;
            // A peer that never pauses must not keep the server from stopping.
            _ = stopping.wait_for(|&stop| stop) => return Ok(true),
            received = request => received?,
        };
        let Some((Envelope { request, message, payload }, bytes, permit)) = received else {
            return Ok(false);
        };
        host.counters.received.count(bytes);
        let (request_name, credit) = (message.name(), receiver.take_header_credit());
        let place = Place { request: request_name, _permit: permit, _credit: credit };
        let reply = Reply::new(request, outgoing.clone(), place);
        if message.may_come_from(peer.task, peer.guest.is_some()) {
            host.service.call(peer, message, payload, reply);
        } else {
            let reason = format!("{} does not accept {request_name} from {}", host.identity.task, peer.task);
            reply.refuse(RefusalCode::Malformed, reason);
        }
        turn += 1;
        if turn == TURN_REQUESTS {
            turn = 0;
            yield_now().await;
        }
    }
}

/// Reads a large payload into the service's sink, or returns it if the service has none. `last` has the last
/// two such payloads.
async fn read_payload(
    host: &Host,
    peer: &Peer,
    receiver: &mut dyn FrameReceiver,
    arriving: Arriving<'_>,
    last: &mut [Option<Arrived>; 2],
) -> Result<Payload, WireError> {
    let bytes = arriving.lengths.iter().sum();
    let sink = match arriving.message.may_come_from(peer.task, peer.guest.is_some()) {
        true => host.service.sink(peer, arriving).await,
        false => None,
    };
    let began = observe::now();
    let payload = receiver.finish(sink).await?;
    *last = [last[1], Some(Arrived { bytes, took: observe::since(began) })];
    Ok(payload)
}

/// Writes replies, and heartbeats between them, until the queue is closed.
async fn write_replies(
    host: &Host,
    peer: &Peer,
    mut sender: Box<dyn FrameSender>,
    mut queue: mpsc::Receiver<Next>,
    slow: &AtomicBool,
) -> Result<(), WireError> {
    let limits = host.config.limits;
    let mut lively = Lively::new(&mut queue);
    while let Some(next) = lively.next().await {
        let Outgoing { request, content, place } = match next {
            Ok(Next::Reply(outgoing)) => outgoing,
            Ok(Next::Ahead(request, DecidedAnswer { message, payload, guard })) => {
                let (values, bytes) = (payload.clone(), payload.bytes());
                let envelope = Envelope { request, message, payload };
                write_or_yield(&mut *sender, envelope, &*guard, YIELD_AFTER, &limits).await?;
                // Until the last value was made, the peer was not the one to wait for.
                let took = values.complete_at().map_or(Duration::ZERO, observe::since);
                slow.store(took > slow_limit(bytes), Ordering::Relaxed);
                host.counters.send_ahead(bytes);
                continue;
            }
            Err(heartbeat) => {
                write(&mut *sender, heartbeat, &limits).await?;
                continue;
            }
        };
        let (message, payload, guard) = match content {
            Content::Known(message, payload) => (message, payload, None),
            Content::Late(answer) => {
                let DecidedAnswer { message, payload, guard } =
                    decide(&mut *sender, answer, slow.load(Ordering::Relaxed), &limits).await?;
                (message, payload, Some(guard))
            }
        };
        if let Message::Refusal(refusal) = &message {
            host.counters.refuse(refusal.code);
            log_refusal(host, peer, place.request, refusal);
        }
        let (bytes, began) = (payload.bytes(), observe::now());
        let envelope = Envelope { request, message, payload };
        match &guard {
            None => write(&mut *sender, envelope, &limits).await?,
            Some(guard) => {
                write_or_yield(&mut *sender, envelope, &**guard, YIELD_AFTER, &limits).await?;
                slow.store(observe::since(began) > slow_limit(bytes), Ordering::Relaxed);
            }
        }
        drop((guard, place));
        host.counters.send(bytes, observe::since(began));
    }
    Ok(())
}

/// Logs that a request was refused.
fn log_refusal(host: &Host, peer: &Peer, request: &'static str, refusal: &Refusal) {
    let Peer { task, address, .. } = peer;
    match refusal.code {
        // A request that comes too early, too late, twice or before a rollback is normal.
        RefusalCode::Unavailable
        | RefusalCode::Superseded
        | RefusalCode::Again
        | RefusalCode::Alone
        | RefusalCode::RolledBack => {
            tracing::debug!(peer = %task, "refused {request}: {refusal}");
        }
        // The service itself logs these refusals, because only the service knows which of them are expected.
        RefusalCode::Term => {}
        _ => host.warnings.limit(address, "refused_request", || {
            tracing::warn!(peer = %task, address, "refused {request}: {refusal}");
        }),
    }
}

/// Writes an envelope within its time limit. A slower peer is disconnected, because the unread reply occupies
/// memory.
async fn write(sender: &mut dyn FrameSender, envelope: Envelope, limits: &Limits) -> Result<(), WireError> {
    let limit = limits.time_for(envelope.payload.bytes() as u64);
    timeout(limit, sender.send(envelope)).await.unwrap_or(Err(WireError::Stalled(limit.as_secs())))
}

/// Writes a late answer within its time limit. Fails earlier if the peer reads nothing for the time
/// `patience` and another answer waits for the memory of this one.
async fn write_or_yield(
    sender: &mut dyn FrameSender,
    envelope: Envelope,
    guard: &dyn AnswerGuard,
    patience: Duration,
    limits: &Limits,
) -> Result<(), WireError> {
    let Some(taken) = sender.taken() else { return write(sender, envelope, limits).await };
    let payload = envelope.payload.clone();
    let is_ready = || payload.segments().iter().all(Segment::is_ready);
    let written = || taken.load(Ordering::Relaxed);
    let (mut before, mut write) = (written(), std::pin::pin!(write(sender, envelope, limits)));
    loop {
        if let Ok(written) = timeout(patience, &mut write).await {
            return written;
        }
        let now = written();
        if before == now && is_ready() && guard.is_awaited() {
            return Err(WireError::Stalled(patience.as_secs()));
        }
        before = now;
    }
}

/// Waits until the content of a late answer is decided. Sends heartbeats meanwhile.
async fn decide(
    sender: &mut dyn FrameSender,
    answer: Box<dyn LateAnswer>,
    slow: bool,
    limits: &Limits,
) -> Result<DecidedAnswer, WireError> {
    let mut decided = answer.decide(slow);
    loop {
        match timeout(liveness::HEARTBEAT, &mut decided).await {
            Ok(decided) => return Ok(decided),
            Err(_) => write(sender, liveness::heartbeat(), limits).await?,
        }
    }
}

/// Returns how long a peer may take to read an answer of `bytes` bytes without counting as slow.
fn slow_limit(bytes: usize) -> Duration {
    const PATIENCE: Duration = Duration::from_millis(200);
    const BYTES_PER_SECOND_MIN: f64 = (32 << 20) as f64;
    PATIENCE + Duration::from_secs_f64(bytes as f64 / BYTES_PER_SECOND_MIN)
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use futures_util::future::{BoxFuture, FutureExt, poll_fn};

    use super::*;

    /// A sender that has sent its envelope when it has been polled several times.
    struct Slow {
        polls: u32,
        /// Whether the peer reads a byte before each poll. Otherwise it reads only at the end.
        reads: bool,
        taken: Arc<AtomicU64>,
    }

    impl FrameSender for Slow {
        fn send(&mut self, _: Envelope) -> BoxFuture<'_, Result<(), WireError>> {
            poll_fn(|_| {
                self.taken.fetch_add(u64::from(self.reads), Ordering::Relaxed);
                self.polls -= 1;
                if self.polls == 0 { Poll::Ready(Ok(())) } else { Poll::Pending }
            })
            .boxed()
        }

        fn taken(&self) -> Option<Arc<AtomicU64>> {
            Some(Arc::clone(&self.taken))
        }
    }

    struct Guard {
        awaited: bool,
    }

    impl AnswerGuard for Guard {
        fn is_awaited(&self) -> bool {
            self.awaited
        }
    }

    #[tokio::test]
    async fn a_peer_that_reads_nothing_yields_if_others_wait() {
        for (reads, awaited) in [(false, true), (false, false), (true, true)] {
            let mut sender = Slow { polls: 5, reads, taken: Arc::default() };
            let (request, message) = (RequestId(1), liveness::heartbeat().message);
            let envelope = Envelope { request, message, payload: Payload::EMPTY };
            let guard = Guard { awaited };
            let sent =
                write_or_yield(&mut sender, envelope, &guard, Duration::from_millis(1), &Limits::default())
                    .await;
            let yields = matches!(sent, Err(WireError::Stalled(_)));
            assert_eq!(yields, awaited && !reads, "reads: {reads}, awaited: {awaited}, {sent:?}");
        }
    }
}
