//! The handle with which a service replies to one request, at any time and from any thread.

use pushpull_messages::id::RequestId;
use pushpull_messages::message::{Message, Refusal, RefusalCode};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::buffer::{Credit, Payload};
use crate::late::{DecidedAnswer, LateAnswer};

/// A handle to answer one request. If the handle is dropped without an answer, the request is refused.
#[derive(Debug)]
pub struct Reply(Option<Unanswered>);

#[derive(Debug)]
struct Unanswered {
    request: RequestId,
    outgoing: mpsc::Sender<Next>,
    place: Place,
}

/// The place of a request among the unanswered requests of its connection. The request counts as unanswered
/// until this value is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    /// The name of the request, for the log.
    pub request: &'static str,
    pub _permit: OwnedSemaphorePermit,
    /// The credit for the request's header, if it is large.
    pub _credit: Option<Credit>,
}

/// A reply to be written, and the place of its request. The request counts as unanswered until the reply has
/// been written.
pub(crate) struct Outgoing {
    pub request: RequestId,
    pub content: Content,
    pub place: Place,
}

/// A message to be written.
pub(crate) enum Next {
    Reply(Outgoing),
    /// A message that is sent ahead of the reply to a request.
    Ahead(RequestId, DecidedAnswer),
}

/// The content of a reply.
pub(crate) enum Content {
    Known(Message, Payload),
    /// The content is decided when the reply is about to be written.
    Late(Box<dyn LateAnswer>),
}

impl Reply {
    /// Returns the handle to answer `request`. The answer will be put into the queue `outgoing`, which must
    /// have room for the replies to all unanswered requests.
    pub(crate) const fn new(request: RequestId, outgoing: mpsc::Sender<Next>, place: Place) -> Self {
        Self(Some(Unanswered { request, outgoing, place }))
    }

    /// Answers the request with a message and its payload.
    pub fn send(mut self, message: impl Into<Message>, payload: Payload) {
        self.deliver(Content::Known(message.into(), payload));
    }

    /// Answers the request with an answer that is decided when the connection is ready to write it.
    pub fn send_late(mut self, answer: Box<dyn LateAnswer>) {
        self.deliver(Content::Late(answer));
    }

    /// Answers the request with a refusal that has this code and reason.
    pub fn refuse(self, code: RefusalCode, reason: impl std::fmt::Display) {
        self.send(Refusal::new(code, reason), Payload::EMPTY);
    }

    fn deliver(&mut self, content: Content) {
        if let Some(Unanswered { request, outgoing, place }) = self.0.take() {
            // The queue has room for the replies to all unanswered requests, so this fails only if the
            // connection is gone.
            let _ = outgoing.try_send(Next::Reply(Outgoing { request, content, place }));
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.0.is_some() {
            let refusal = Refusal::new(RefusalCode::Unavailable, "the task ended before it could answer");
            self.deliver(Content::Known(refusal.into(), Payload::EMPTY));
        }
    }
}
