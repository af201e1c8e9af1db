//! A shard's record of a worker. Checkpoints store these records.

use serde::{Deserialize, Serialize};

use crate::id::{Incarnation, Sequence};
use crate::message::Verdict;

/// A shard's record of one worker: the worker's last push, the verdict on that push, and the worker's
/// position in its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerRecord {
    /// The index of the worker task.
    pub worker: u32,
    /// The incarnation of the worker.
    pub incarnation: Incarnation,
    /// The sequence number of the worker's last push.
    pub sequence: Sequence,
    /// The verdict on the worker's last push.
    pub verdict: Verdict,
    /// The number of batches that the worker has taken from its input, counted over all its incarnations. A
    /// batch does not count while the shard still holds its gradients for an update that aggregates several
    /// pushes. It does not count either if its gradients arrived after the last step.
    pub drawn: u64,
}

impl WorkerRecord {
    /// Makes the record of a worker that took `drawn` batches in earlier runs of the job and has not pushed
    /// in this run.
    pub const fn new(worker: u32, drawn: u64) -> Self {
        let (incarnation, sequence) = (Incarnation(0), Sequence(0));
        Self { worker, incarnation, sequence, verdict: Verdict::Stopped, drawn }
    }
}
