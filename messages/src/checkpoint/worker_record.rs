//! What a shard remembers of a worker, as a checkpoint keeps it.

use serde::{Deserialize, Serialize};

use crate::id::{Incarnation, Sequence};
use crate::message::Verdict;

/// What a shard remembers of a worker: its last push, what that was told, and how far the worker was in its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerRecord {
    /// The index of the worker task.
    pub worker: u32,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Its last push.
    pub sequence: Sequence,
    /// What became of that.
    pub verdict: Verdict,
    /// Batches that it had taken from its input, in all its lives.
    pub drawn: u64,
}

impl WorkerRecord {
    /// Of a worker that has not pushed in this life of the job, with so many batches drawn before.
    pub const fn new(worker: u32, drawn: u64) -> Self {
        let (incarnation, sequence) = (Incarnation(0), Sequence(0));
        Self { worker, incarnation, sequence, verdict: Verdict::Stopped, drawn }
    }
}
