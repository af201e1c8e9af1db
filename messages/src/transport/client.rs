//! The calling end of a connection: many requests in flight, each reply finds its request.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot};

use super::connection::{Connection, FrameReceiver, FrameSender, TransportError};
use super::dial::DialError;
use super::handshake::Identity;
use super::liveness;
use crate::buffer::Payload;
use crate::id::{RequestId, TaskId};
use crate::message::{Message, Refusal, RefusalCode, Welcome};
use crate::wire::{Envelope, Limits, WireError};

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
    waiting: BTreeMap<u64, oneshot::Sender<(Message, Payload)>>,
    /// Why no reply will ever come, once that is so.
    lost: Option<String>,
}

impl Client {
    /// Says who we are and hears who the peer is; then serves calls on the current runtime.
    pub(super) async fn handshake(
        connection: Connection,
        identity: &Identity,
        to: TaskId,
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
        let calls = Calls { next: 1, waiting: BTreeMap::new(), lost: None };
        let pending = Arc::new(Pending(Mutex::new(calls)));
        tokio::spawn(run(sender, receiver, queue, Arc::clone(&pending)));
        Ok(Self { peer: to, welcome, outgoing, slots: Semaphore::new(requests_max), pending })
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
        let (request, reply) = self.pending.register().map_err(|reason| self.lost(reason))?;
        let envelope = Envelope { request, message: message.into(), payload };
        // Where this fails the connection's task has ended, and has said why to every pending call.
        let _ = self.outgoing.send(envelope).await;
        let (message, payload) = reply.await.map_err(|_| self.lost(self.pending.reason()))?;
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

    fn register(&self) -> Result<(RequestId, oneshot::Receiver<(Message, Payload)>), String> {
        let mut calls = self.lock();
        if let Some(reason) = &calls.lost {
            return Err(reason.clone());
        }
        let request = calls.next;
        calls.next += 1;
        let (sender, receiver) = oneshot::channel();
        calls.waiting.insert(request, sender);
        Ok((RequestId(request), receiver))
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
) {
    // Pinned here, so that the queue closes only when the reason is known.
    let mut write = std::pin::pin!(async move {
        while let Some(next) = liveness::next(&mut queue).await {
            if let Err(error) = sender.send(next.unwrap_or_else(|heartbeat| heartbeat)).await {
                return error.to_string();
            }
        }
        "closed by this task".to_owned()
    });
    let read = async {
        loop {
            match receiver.receive().await {
                Ok(Some(Envelope { message: Message::Heartbeat(_), .. })) => {}
                Ok(Some(Envelope { request, message, payload })) => {
                    let waiting = pending.lock().waiting.remove(&request.0);
                    match waiting {
                        // A call that was given up waits no more.
                        Some(waiting) => drop(waiting.send((message, payload))),
                        None => return format!("a reply to request {request}, which was never made"),
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
        calls.waiting.clear();
    }
}
