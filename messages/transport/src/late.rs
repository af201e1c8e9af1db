//! Answers whose content is decided only when their connection is ready to write them. A service uses them
//! for large payloads, so that a queued answer does not keep memory in use.

use futures_util::future::BoxFuture;
use pushpull_messages::message::Message;

use crate::buffer::Payload;

/// An answer whose message and payload are decided when the answer is about to be written.
pub trait LateAnswer: Send {
    /// Decides the content of the answer; may wait until there is memory for it. `slow` tells whether the
    /// connection is slow: its peer was slow to read the last late answer, or has not read any late answer
    /// yet.
    fn decide(self: Box<Self>, slow: bool) -> BoxFuture<'static, DecidedAnswer>;
}

/// The content of a late answer.
pub struct DecidedAnswer {
    /// The message.
    pub message: Message,
    /// The tensor bytes that belong to the message.
    pub payload: Payload,
    /// A guard that is dropped when the transport has taken all of the answer, or when the connection has
    /// ended.
    pub guard: Box<dyn AnswerGuard>,
}

/// A guard that holds the memory of a late answer until the answer is written.
pub trait AnswerGuard: Send + Sync {
    /// Returns whether another answer waits for memory. While one waits, the connection of this answer is
    /// closed if its peer stops reading.
    fn is_awaited(&self) -> bool;
}
