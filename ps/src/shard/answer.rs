//! A shard's answers to requests, the rule by which one request supersedes another, and the refusals.

use pushpull_messages::id::{Incarnation, PlacementEpoch, ShardId, Version};
use pushpull_messages::message::{Message, Refusal, RefusalCode};
use pushpull_transport::buffer::Payload;

use super::newest::ValuesKind;

/// An answer that is due, and the handle that sends it.
#[derive(Debug)]
pub struct Answer<R> {
    /// The caller's handle that sends the answer.
    pub reply: R,
    /// The message with its payload, or the reason why the request is refused.
    pub result: Result<(Message, Payload), Refusal>,
    /// Which of the shard's tensors the payload contains; `None` if the answer has no payload. The caller
    /// may answer with newer values instead.
    pub values: Option<ValuesKind>,
    /// The version that the draft of a push has become, if the push was drafted and applied.
    pub drafted: Option<Version>,
}

impl<R> Answer<R> {
    pub(crate) fn refused(reply: R, refusal: Refusal) -> Self {
        Self { reply, result: Err(refusal), values: None, drafted: None }
    }

    /// Returns an answer without payload.
    pub(super) fn message(reply: R, message: impl Into<Message>) -> Self {
        Self { reply, result: Ok((message.into(), Payload::EMPTY)), values: None, drafted: None }
    }
}

/// A worker that sends a request, identified by the handshake of its connection.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    /// The index of the worker task.
    pub worker: u32,
    /// The incarnation of the worker. Each start of the worker has a new one.
    pub incarnation: Incarnation,
    /// The number that this ps task gave to the connection on which the request arrived. Each connection has
    /// a greater number than all earlier ones.
    pub connection: u64,
}

/// A peer that waits for the answer to a slow request, such as a save.
#[derive(Debug)]
pub(super) struct Asker<R> {
    pub reply: R,
    /// The number that this ps task gave to the connection on which the request arrived. Each connection has
    /// a greater number than all earlier ones.
    pub connection: u64,
}

impl<R> Asker<R> {
    /// Handles `newer`, a repetition of this request. Of the two copies, the one on the later connection will
    /// get the answer, or `newer` if both are on one connection. Returns the refusal of the other copy, with
    /// the code `Superseded`.
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

/// Returns the refusal of a request that a worker made before the job rolled back.
pub(super) fn rolled_back(to: PlacementEpoch) -> Refusal {
    let reason =
        format!("the job has rolled back to a checkpoint and has placement epoch {to}: register again");
    Refusal::new(RefusalCode::RolledBack, reason)
}

/// Returns the refusal of a worker's request to an empty shard. Workers begin only after all shards have got
/// their variables, so this shard has lost its variables.
pub(super) fn variables_lost(shard: ShardId) -> Refusal {
    let reason = format!("{shard} has no variables, so its ps task was started again: register again");
    Refusal::new(RefusalCode::RolledBack, reason)
}

/// Returns the refusal of a push whose gradients the shard has not kept.
pub(super) fn again() -> Refusal {
    let reason =
        "the shard has changed while the push arrived, and has not kept its gradients: send it again";
    Refusal::new(RefusalCode::Again, reason)
}

/// Returns the refusal of a push that has overtaken an earlier one of its worker.
pub(super) fn early() -> Refusal {
    let reason =
        "an earlier push of the worker has not arrived: send this one again when that one is answered";
    Refusal::new(RefusalCode::Again, reason)
}

/// Returns the refusal of a push of several workers' gradients of which some cannot be counted now.
pub(super) fn alone(worker: u32) -> Refusal {
    let reason = format!(
        "the gradients of worker/{worker} are counted already or cannot be counted, so the sum of several workers' gradients is not: push each alone"
    );
    Refusal::new(RefusalCode::Alone, reason)
}

/// Returns the refusal of a request that cannot be served yet, or can no longer be served.
pub(super) fn unavailable(reason: String) -> Refusal {
    Refusal::new(RefusalCode::Unavailable, reason)
}
