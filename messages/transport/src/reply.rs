//! The reply to one request. Knows neither transport nor session.

use pushpull_messages::id::RequestId;
use pushpull_messages::message::{Message, Refusal, RefusalCode};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::buffer::Payload;
use crate::wire::Envelope;

/// The right and the duty to answer one request. If it is dropped without an answer, it refuses the request.
#[derive(Debug)]
pub struct Reply(Option<Unanswered>);

#[derive(Debug)]
struct Unanswered {
    request: RequestId,
    outgoing: mpsc::Sender<Outgoing>,
    permit: OwnedSemaphorePermit,
}

/// A reply that is to be written; the permit is returned after that.
pub(crate) struct Outgoing {
    pub envelope: Envelope,
    pub permit: OwnedSemaphorePermit,
}

impl Reply {
    /// Returns the reply to `request`, which goes to `outgoing`. That queue must have room for every permit.
    pub(crate) const fn new(
        request: RequestId,
        outgoing: mpsc::Sender<Outgoing>,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        Self(Some(Unanswered { request, outgoing, permit }))
    }

    /// Sends the reply.
    pub fn send(mut self, message: impl Into<Message>, payload: Payload) {
        self.deliver(message.into(), payload);
    }

    /// Refuses the request.
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
