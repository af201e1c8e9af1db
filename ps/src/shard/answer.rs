//! Answers to a shard's requests: when a later request supersedes an earlier one, and how a request is
//! refused.

use pushpull_messages::id::Incarnation;
use pushpull_messages::message::{Message, Refusal, RefusalCode};
use pushpull_transport::buffer::Payload;

/// An answer that is due, and where it goes.
#[derive(Debug)]
pub struct Answer<R> {
    /// The caller's handle to the reply.
    pub reply: R,
    /// The message with its payload, or why the request is refused.
    pub result: Result<(Message, Payload), Refusal>,
}

impl<R> Answer<R> {
    pub(super) fn refused(reply: R, refusal: Refusal) -> Self {
        Self { reply, result: Err(refusal) }
    }

    /// Returns an answer without payload.
    pub(super) fn message(reply: R, message: impl Into<Message>) -> Self {
        Self { reply, result: Ok((message.into(), Payload::EMPTY)) }
    }
}

/// A worker that sends a request, as its connection identifies it.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    /// The index of the worker task.
    pub worker: u32,
    /// The life of that worker.
    pub incarnation: Incarnation,
    /// The number of the task's connection; later ones have greater numbers.
    pub connection: u64,
}

/// A peer that waits for an answer which takes time.
#[derive(Debug)]
pub(super) struct Asker<R> {
    pub reply: R,
    /// The number of the task's connection; later ones have greater numbers.
    pub connection: u64,
}

impl<R> Asker<R> {
    /// Replaces the asker by one that asked the same again, and returns the answer to the superseded request:
    /// the one on the earlier connection.
    pub(super) fn supersede(&mut self, newer: Self) -> Answer<R> {
        let overtaken = self.connection > newer.connection;
        let older = if overtaken { newer } else { std::mem::replace(self, newer) };
        Answer::refused(older.reply, Refusal::superseded())
    }
}

/// Returns the refusal of a request that does not fit the shard.
pub(super) fn misfit(reason: String) -> Refusal {
    Refusal::new(RefusalCode::Misfit, reason)
}

/// Returns the refusal of a request that cannot be served now, or no longer.
pub(super) fn unavailable(reason: String) -> Refusal {
    Refusal::new(RefusalCode::Unavailable, reason)
}
