//! The handle with which a service replies to one request, at any time and from any thread.

use pushpull_messages::id::RequestId;
use pushpull_messages::message::{Message, Refusal, RefusalCode};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::buffer::Payload;
use crate::wire::Envelope;

/// A handle to answer one request. If the handle is dropped without an answer, the request is refused.
#[derive(Debug)]
pub struct Reply(Option<Unanswered>);

#[derive(Debug)]
struct Unanswered {
    request: RequestId,
    outgoing: mpsc::Sender<Outgoing>,
    permit: OwnedSemaphorePermit,
}

/// A reply to be written, and the permit of its request. The request counts as unanswered until the reply
/// has been written and the permit is released.
pub(crate) struct Outgoing {
    pub envelope: Envelope,
    pub permit: OwnedSemaphorePermit,
}

impl Reply {
    /// Returns the handle to answer `request`. The answer will be put into the queue `outgoing`, which must
    /// have room for the reply of every request that holds a permit.
    pub(crate) const fn new(
        request: RequestId,
        outgoing: mpsc::Sender<Outgoing>,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        Self(Some(Unanswered { request, outgoing, permit }))
    }

    /// Answers the request with a message and its payload.
    pub fn send(mut self, message: impl Into<Message>, payload: Payload) {
        self.deliver(message.into(), payload);
    }

    /// Answers the request with a refusal that has this code and reason.
    pub fn refuse(self, code: RefusalCode, reason: impl std::fmt::Display) {
        self.send(Refusal::new(code, reason), Payload::EMPTY);
    }

    fn deliver(&mut self, message: Message, payload: Payload) {
        if let Some(Unanswered { request, outgoing, permit }) = self.0.take() {
            let envelope = Envelope { request, message, payload };
            // The queue has room for every permit, so this fails only if the connection is gone.
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
