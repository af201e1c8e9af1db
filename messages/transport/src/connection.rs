//! The calling end of one connection. Many requests may be in flight, and each reply is matched to its
//! request.

use std::sync::Arc;
use std::time::Duration;

use pushpull_messages::id::{RequestId, TaskId};
use pushpull_messages::message::{Message, Refusal, RefusalCode, Welcome};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tracing::Instrument;

use crate::buffer::Payload;
use crate::caller::Caller;
use crate::counters::CallCounters;
use crate::earlier::EarlierCall;
use crate::error::{CallError, DialError, TransportError};
use crate::link::{FrameReceiver, FrameSender, Link};
use crate::liveness::Lively;
use crate::pending::{Pending, PendingRequest};
use crate::retry::RetryConfig;
use crate::wire::{Envelope, Limits, WireError};

/// How long the peer may take to answer the handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A connection to one task, over which calls are made. The connection is closed when this value is dropped.
#[derive(Debug)]
pub struct Connection {
    peer: TaskId,
    welcome: Welcome,
    outgoing: mpsc::Sender<Envelope>,
    slots: Semaphore,
    pending: Arc<Pending>,
    counters: Arc<CallCounters>,
}

impl Connection {
    /// Performs the handshake of `caller` over a new link, and then starts a background task that
    /// carries the calls. The background task runs on the current runtime.
    ///
    /// # Errors
    /// Returns an error if the peer refuses the caller, or if the link breaks.
    pub(crate) async fn open(
        link: Link,
        caller: Caller<'_>,
        counters: Arc<CallCounters>,
    ) -> Result<Self, DialError> {
        let Link { mut sender, mut receiver, peer: address, proven } = link;
        // The hello describes the cluster, so it is for the right task only.
        caller.check_reached(&address, proven.as_ref())?;
        let welcome = shake_hands(&mut *sender, &mut *receiver, &address, caller).await?;
        receiver.trust(Limits::default(), None);
        let requests_max = welcome.requests_max.clamp(1, 1 << 16) as usize;
        let (outgoing, queue) = mpsc::channel(requests_max);
        let pending = Arc::new(Pending::new());
        let carry = carry(sender, receiver, queue, Arc::clone(&pending), Arc::clone(&counters));
        tokio::spawn(carry.in_current_span());
        let slots = Semaphore::new(requests_max);
        Ok(Self { peer: caller.reached(&welcome), welcome, outgoing, slots, pending, counters })
    }

    /// Returns the task at the other end.
    pub const fn peer(&self) -> TaskId {
        self.peer
    }

    /// Returns the peer's description of itself from the handshake.
    pub const fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Returns whether the connection is lost.
    pub fn is_lost(&self) -> bool {
        self.pending.is_lost()
    }

    /// Returns whether the peer has sent anything since the handshake.
    pub(crate) fn was_heard(&self) -> bool {
        self.pending.was_heard()
    }

    /// Returns whether a call was waiting for its reply when the connection was lost.
    pub(crate) fn was_missed(&self) -> bool {
        self.pending.was_missed()
    }

    /// Waits until the connection is lost, and returns the reason.
    pub async fn wait_lost(&self) -> String {
        self.outgoing.closed().await;
        self.pending.reason()
    }

    /// Sends a request and waits for the reply. If the number of requests in flight has reached the peer's
    /// limit, first waits until one of them is answered.
    ///
    /// # Errors
    /// Returns an error if the peer refuses the request, if the connection is lost, or if the reply
    /// is not an `R`.
    pub async fn call<R>(
        &self,
        message: impl Into<Message>,
        payload: Payload,
    ) -> Result<(R, Payload), CallError>
    where
        R: TryFrom<Message, Error = Message>,
    {
        let (reply, payload) = self.exchange(message.into(), payload).await?;
        Ok((reply_as(self.peer, reply)?, payload))
    }

    /// Sends a request and waits for a reply of any kind.
    async fn exchange(&self, message: Message, payload: Payload) -> Result<(Message, Payload), CallError> {
        let _slot = self.slots.acquire().await.expect("never closed");
        let mut request = self.send(message, payload).await?;
        (&mut request.reply).await.map_err(|_| self.lost(self.pending.reason()))
    }

    /// Sends a request and waits for a reply of any kind. If no reply comes in time, sends the request again
    /// with a new id, and ignores a reply to the earlier copy. If the peer asks for the request again, sends
    /// it as soon as the call `earlier` is answered, or at once if there is none. `retry` defines how long to
    /// wait before each repetition. While the transport has not taken all of a request, the request is not
    /// sent again.
    ///
    /// # Errors
    /// Returns an error if the connection is lost, or if the request is to be sent again and `earlier` has
    /// failed.
    pub(crate) async fn exchange_with_resends(
        &self,
        message: &Message,
        payload: &Payload,
        retry: &RetryConfig,
        earlier: &mut EarlierCall,
    ) -> Result<(Message, Payload), CallError> {
        let _slot = self.slots.acquire().await.expect("never closed");
        let mut pauses = retry.resend_pauses();
        loop {
            let pause = pauses.next().expect("the pauses never end");
            let mut request = self.send(message.clone(), payload.clone()).await?;
            loop {
                match timeout(pause, &mut request.reply).await {
                    // The peer could not keep the request, so it asks for it again.
                    Ok(Ok((Message::Refusal(refusal), _))) if refusal.code == RefusalCode::Again => {
                        earlier.answered().await.map_err(|failed| failed.of(self.peer))?;
                        break;
                    }
                    Ok(reply) => return reply.map_err(|_| self.lost(self.pending.reason())),
                    // The transport has not taken all of the request, so the peer cannot have replied yet.
                    Err(_) if !request.is_written() => {}
                    Err(_) => break,
                }
            }
            tracing::debug!(peer = %self.peer, request = message.name(), ?pause, "sending again");
            self.counters.resend();
        }
    }

    async fn send(&self, message: Message, payload: Payload) -> Result<PendingRequest<'_>, CallError> {
        let request = self.pending.register().map_err(|reason| self.lost(reason))?;
        // This fails only if the connection has ended. The caller learns that when it waits for the reply.
        let _ = self.outgoing.send(Envelope { request: request.id, message, payload }).await;
        Ok(request)
    }

    fn lost(&self, reason: String) -> CallError {
        CallError::Lost { peer: self.peer, reason }
    }
}

/// Returns the reply of `peer` as an `R`.
///
/// # Errors
/// Returns an error if the reply is a refusal, or is not an `R`.
pub(crate) fn reply_as<R>(peer: TaskId, reply: Message) -> Result<R, CallError>
where
    R: TryFrom<Message, Error = Message>,
{
    R::try_from(reply).map_err(|reply| match reply {
        Message::Refusal(refusal) => CallError::Refused { peer, refusal: *refusal },
        other => CallError::Unexpected {
            peer,
            expected: std::any::type_name::<R>().rsplit("::").next().unwrap_or("another"),
            got: other.name(),
        },
    })
}

/// Sends the caller's hello, and waits for the peer's welcome.
async fn shake_hands(
    sender: &mut dyn FrameSender,
    receiver: &mut dyn FrameReceiver,
    address: &str,
    caller: Caller<'_>,
) -> Result<Welcome, DialError> {
    let lost =
        |reason: String| DialError::Transport(TransportError::io(address, std::io::Error::other(reason)));
    let hello = Envelope { request: RequestId(0), message: caller.hello().into(), payload: Payload::EMPTY };
    let answer = async {
        sender.send(hello).await?;
        receiver.receive().await
    };
    let answer = timeout(HANDSHAKE, answer)
        .await
        .map_err(|_| lost(format!("no answer to the handshake within {} s", HANDSHAKE.as_secs())))?
        .map_err(|error| match error {
            WireError::Version { .. } => caller.refused(address, Refusal::new(RefusalCode::Protocol, error)),
            WireError::TlsDemanded => {
                TransportError::Untrusted { address: address.to_owned(), error: caller.demanded() }.into()
            }
            error => lost(error.to_string()),
        })?
        .ok_or_else(|| lost("the peer closed the connection during the handshake".into()))?;
    match answer.message {
        Message::Welcome(welcome) => Ok(*welcome),
        Message::Refusal(refusal) => Err(caller.refused(address, *refusal)),
        other => {
            Err(lost(format!("the peer answered the handshake with {}, expected Welcome", other.name())))
        }
    }
}

/// Sends and receives envelopes until the connection is dropped or its link breaks.
async fn carry(
    mut sender: Box<dyn FrameSender>,
    mut receiver: Box<dyn FrameReceiver>,
    mut queue: mpsc::Receiver<Envelope>,
    pending: Arc<Pending>,
    counters: Arc<CallCounters>,
) {
    // The future only borrows the queue. The queue closes at the end of this function, after `end` has
    // recorded the reason: a caller that sees the queue closed must find the reason.
    let mut write = std::pin::pin!(async {
        let mut lively = Lively::new(&mut queue);
        while let Some(next) = lively.next().await {
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
                Ok(Some(Envelope { message: Message::Heartbeat(_), .. })) => pending.heard(),
                Ok(Some(Envelope { request, message, payload })) => {
                    counters.received.count(payload.bytes());
                    if !pending.reply(request, message, payload, &counters) {
                        return format!("the peer replied to request {request}, which was never made");
                    }
                }
                Ok(None) => return "closed by the peer".to_owned(),
                Err(error) => return error.to_string(),
            }
        }
    };
    let mut end = End { pending: &pending, reason: None };
    end.reason = Some(tokio::select! {
        biased;
        // A reply that has arrived counts, even if the peer closed the connection after it.
        reason = read => reason,
        reason = &mut write => reason,
    });
}

/// A guard that is dropped when the connection ends, even if the connection's task panics or is cancelled.
/// Every request that still waits for a reply then fails with the reason.
struct End<'a> {
    pending: &'a Pending,
    reason: Option<String>,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.pending.lose(
            self.reason.take().unwrap_or_else(|| "the connection's task panicked or was cancelled".into()),
        );
    }
}
