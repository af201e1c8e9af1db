//! The calling end of a connection: many requests in flight, each reply finds its request.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot};

use super::connection::{Connection, FrameReceiver, FrameSender, TransportError};
use super::counters::CallCounters;
use super::dial::DialError;
use super::handshake::Identity;
use super::liveness;
use super::retry::RetryConfig;
use crate::buffer::Payload;
use crate::wire::{Envelope, Limits, WireError};
use pushpull_messages::id::{RequestId, TaskId};
use pushpull_messages::message::{Message, Refusal, RefusalCode, Welcome};

/// So long may the peer take to answer the handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A connection to one task, for calls. Closed when it is dropped.
#[derive(Debug)]
pub struct Client {
    peer: TaskId,
    welcome: Welcome,
    outgoing: mpsc::Sender<Envelope>,
    slots: Semaphore,
    pending: Arc<Pending>,
    counters: Arc<CallCounters>,
}

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The peer says why it did not do it.
    #[error("{peer}: {refusal}")]
    Refused {
        /// Who refused.
        peer: TaskId,
        /// Why.
        refusal: Refusal,
    },
    /// The connection is gone; whether the request was carried out is not known.
    #[error("the connection to {peer} is lost: {reason}")]
    Lost {
        /// Who is gone.
        peer: TaskId,
        /// What the transport said.
        reason: String,
    },
    /// The answer is of another kind than the request asks for.
    #[error("{peer} answered with {got} where {expected} was expected")]
    Unexpected {
        /// Who answered.
        peer: TaskId,
        /// The kind that fits.
        expected: &'static str,
        /// The kind that came.
        got: &'static str,
    },
}

#[derive(Debug)]
struct Pending(Mutex<Calls>);

#[derive(Debug)]
struct Calls {
    next: u64,
    waiting: BTreeMap<u64, Waiting>,
    /// Whether the peer has said anything since the handshake.
    heard: bool,
    /// Why no reply will ever come, once that is so.
    lost: Option<String>,
    /// Whether anybody was waiting for a reply then.
    missed: bool,
}

#[derive(Debug)]
struct Waiting {
    reply: oneshot::Sender<(Message, Payload)>,
    /// Whether the transport has taken all of the request.
    written: bool,
}

/// A request that was made; dropped, it is forgotten, and its reply will be ignored.
struct Asked<'a> {
    pending: &'a Pending,
    request: RequestId,
    reply: oneshot::Receiver<(Message, Payload)>,
}

impl Asked<'_> {
    fn is_written(&self) -> bool {
        self.pending.lock().waiting.get(&self.request.0).is_none_or(|waiting| waiting.written)
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.pending.lock().waiting.remove(&self.request.0);
    }
}

impl Client {
    /// Says who we are and hears who the peer is; then serves calls on the current runtime.
    pub(super) async fn handshake(
        connection: Connection,
        identity: &Identity,
        to: TaskId,
        counters: Arc<CallCounters>,
    ) -> Result<Self, DialError> {
        let Connection { mut sender, mut receiver, peer: address } = connection;
        let lost = |reason: String| {
            DialError::Transport(TransportError::io(&address, std::io::Error::other(reason)))
        };
        let hello =
            Envelope { request: RequestId(0), message: identity.hello(to).into(), payload: Payload::EMPTY };
        let answer = async {
            sender.send(hello).await?;
            receiver.receive().await
        };
        let answer = tokio::time::timeout(HANDSHAKE, answer)
            .await
            .map_err(|_| lost(format!("no answer to the handshake within {} s", HANDSHAKE.as_secs())))?
            .map_err(|error| match error {
                WireError::Version { .. } => {
                    DialError::Refused { to, refusal: Refusal::new(RefusalCode::Protocol, error) }
                }
                error => lost(error.to_string()),
            })?
            .ok_or_else(|| lost("closed during the handshake".into()))?;
        let welcome = match answer.message {
            Message::Welcome(welcome) => *welcome,
            Message::Refusal(refusal) => return Err(DialError::Refused { to, refusal: *refusal }),
            other => return Err(lost(format!("answered the handshake with {}", other.name()))),
        };
        receiver.trust(Limits::default(), None);
        let requests_max = welcome.requests_max.clamp(1, 1 << 16) as usize;
        let (outgoing, queue) = mpsc::channel(requests_max);
        let calls = Calls { next: 1, waiting: BTreeMap::new(), heard: false, lost: None, missed: false };
        let pending = Arc::new(Pending(Mutex::new(calls)));
        tokio::spawn(run(sender, receiver, queue, Arc::clone(&pending), Arc::clone(&counters)));
        let slots = Semaphore::new(requests_max);
        Ok(Self { peer: to, welcome, outgoing, slots, pending, counters })
    }

    /// Who is at the other end.
    pub const fn peer(&self) -> TaskId {
        self.peer
    }

    /// What it said of itself.
    pub const fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Whether the connection is gone.
    pub fn is_lost(&self) -> bool {
        self.pending.lock().lost.is_some()
    }

    /// Whether the peer has said anything since the handshake.
    pub(super) fn was_heard(&self) -> bool {
        self.pending.lock().heard
    }

    /// Whether anybody was waiting for a reply when the connection was lost.
    pub(super) fn was_missed(&self) -> bool {
        self.pending.lock().missed
    }

    /// Waits until the connection is gone, and says why.
    pub async fn wait_lost(&self) -> String {
        self.outgoing.closed().await;
        self.pending.reason()
    }

    /// Sends a request and waits for the reply. Waits first while as many requests are in flight as the peer takes.
    ///
    /// # Errors
    /// Where the peer refuses, the connection is lost, or the reply is of another kind.
    pub async fn call<R>(
        &self,
        message: impl Into<Message>,
        payload: Payload,
    ) -> Result<(R, Payload), CallError>
    where
        R: TryFrom<Message, Error = Message>,
    {
        let _slot = self.slots.acquire().await.expect("never closed");
        let mut asked = self.ask(message.into(), payload).await?;
        let reply = (&mut asked.reply).await;
        self.answer(reply.ok())
    }

    /// Like [`call`](Self::call); makes the request again when no answer has come for long enough, and forgets the
    /// earlier one. What the transport has not yet taken is not made again.
    pub(super) async fn call_patiently<R>(
        &self,
        message: &Message,
        payload: &Payload,
        retry: &RetryConfig,
    ) -> Result<(R, Payload), CallError>
    where
        R: TryFrom<Message, Error = Message>,
    {
        let _slot = self.slots.acquire().await.expect("never closed");
        let mut pause = retry.resend_after;
        loop {
            let mut asked = self.ask(message.clone(), payload.clone()).await?;
            loop {
                match tokio::time::timeout(pause, &mut asked.reply).await {
                    Ok(reply) => return self.answer(reply.ok()),
                    // It is not the answer that is late.
                    Err(_) if !asked.is_written() => {}
                    Err(_) => break,
                }
            }
            tracing::debug!("{} has not answered {} for {pause:?}: asking again", self.peer, message.name());
            self.counters.resend();
            pause = retry.next_pause(pause);
        }
    }

    async fn ask(&self, message: Message, payload: Payload) -> Result<Asked<'_>, CallError> {
        let asked = self.pending.register().map_err(|reason| self.lost(reason))?;
        // Where this fails the connection's task has ended, and has said why to every pending call.
        let _ = self.outgoing.send(Envelope { request: asked.request, message, payload }).await;
        Ok(asked)
    }

    /// What a reply means to the one who waits for an `R`; without any the connection is gone.
    fn answer<R>(&self, reply: Option<(Message, Payload)>) -> Result<(R, Payload), CallError>
    where
        R: TryFrom<Message, Error = Message>,
    {
        let (message, payload) = reply.ok_or_else(|| self.lost(self.pending.reason()))?;
        match R::try_from(message) {
            Ok(content) => Ok((content, payload)),
            Err(Message::Refusal(refusal)) => Err(CallError::Refused { peer: self.peer, refusal: *refusal }),
            Err(other) => Err(CallError::Unexpected {
                peer: self.peer,
                expected: std::any::type_name::<R>().rsplit("::").next().unwrap_or("another"),
                got: other.name(),
            }),
        }
    }

    fn lost(&self, reason: String) -> CallError {
        CallError::Lost { peer: self.peer, reason }
    }
}

impl Pending {
    fn lock(&self) -> std::sync::MutexGuard<'_, Calls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register(&self) -> Result<Asked<'_>, String> {
        let mut calls = self.lock();
        if let Some(reason) = &calls.lost {
            return Err(reason.clone());
        }
        let request = calls.next;
        calls.next += 1;
        let (sender, reply) = oneshot::channel();
        calls.waiting.insert(request, Waiting { reply: sender, written: false });
        Ok(Asked { pending: self, request: RequestId(request), reply })
    }

    fn written(&self, request: RequestId) {
        if let Some(waiting) = self.lock().waiting.get_mut(&request.0) {
            waiting.written = true;
        }
    }

    /// Takes a reply to its request. False where there never was such a request.
    fn reply(&self, request: RequestId, message: Message, payload: Payload, counters: &CallCounters) -> bool {
        let mut calls = self.lock();
        calls.heard = true;
        let made = (1..calls.next).contains(&request.0);
        // Another copy of the request is still to be answered.
        let superseded =
            matches!(&message, Message::Refusal(refusal) if refusal.code == RefusalCode::Superseded);
        match calls.waiting.remove(&request.0) {
            Some(waiting) if superseded => drop(calls.waiting.insert(request.0, waiting)),
            Some(Waiting { reply, .. }) => {
                drop(calls);
                // A call that was given up at this moment waits no more.
                drop(reply.send((message, payload)));
            }
            None if made => counters.ignore(),
            None => {}
        }
        made
    }

    fn reason(&self) -> String {
        self.lock().lost.clone().unwrap_or_else(|| "closed".to_owned())
    }
}

/// Carries envelopes both ways until the client is dropped or the connection breaks.
async fn run(
    mut sender: Box<dyn FrameSender>,
    mut receiver: Box<dyn FrameReceiver>,
    mut queue: mpsc::Receiver<Envelope>,
    pending: Arc<Pending>,
    counters: Arc<CallCounters>,
) {
    // Pinned here, so that the queue closes only when the reason is known.
    let mut write = std::pin::pin!(async {
        while let Some(next) = liveness::next(&mut queue).await {
            let is_request = next.is_ok();
            let envelope = next.unwrap_or_else(|heartbeat| heartbeat);
            let (request, bytes) = (envelope.request, envelope.payload.bytes());
            if let Err(error) = sender.send(envelope).await {
                return error.to_string();
            }
            if is_request {
                counters.sent.count(bytes);
                pending.written(request);
            }
        }
        "closed by this task".to_owned()
    });
    let read = async {
        loop {
            match receiver.receive().await {
                Ok(Some(Envelope { message: Message::Heartbeat(_), .. })) => pending.lock().heard = true,
                Ok(Some(Envelope { request, message, payload })) => {
                    counters.received.count(payload.bytes());
                    if !pending.reply(request, message, payload, &counters) {
                        return format!("a reply to request {request}, which was never made");
                    }
                }
                Ok(None) => return "closed by the peer".to_owned(),
                Err(error) => return error.to_string(),
            }
        }
    };
    let mut end = End { pending: &pending, reason: None };
    end.reason = Some(tokio::select! {
        reason = &mut write => reason,
        reason = read => reason,
    });
}

/// However the connection's task ends, nobody waits for a reply that cannot come.
struct End<'a> {
    pending: &'a Pending,
    reason: Option<String>,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut calls = self.pending.lock();
        calls.lost =
            Some(self.reason.take().unwrap_or_else(|| "its task has panicked or was cancelled".into()));
        calls.missed = !calls.waiting.is_empty();
        calls.waiting.clear();
    }
}
