//! Pushes a gradient to a shard, which replies with its verdict.

use serde::{Deserialize, Serialize};

use super::pull::one_segment_per_slice;
use super::{Content, Invalid};
use crate::id::{GlobalStep, Incarnation, LocalStep, PlacementEpoch, Sequence, SliceId, Version};
use crate::observe::PushTimes;

/// The identity of a push. A retry has the same identity and changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PushId {
    /// The index of the worker task.
    pub worker: u32,
    /// The incarnation of the worker.
    pub incarnation: Incarnation,
    /// The number of the push in this incarnation, consecutive from 1.
    pub sequence: Sequence,
}

/// Worker to ps: the gradients of one step for all slices of one shard, one payload segment each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Push {
    /// The shard's index in the ps task.
    pub shard: u32,
    /// The identity of the push.
    pub id: PushId,
    /// The worker's step at which the gradient was computed.
    pub local_step: LocalStep,
    /// The epoch of the worker's placement.
    pub epoch: PlacementEpoch,
    /// The digest of the worker's placement (P2).
    pub placement_digest: u32,
    /// The shard's version from which the gradient was computed.
    pub version: Version,
    /// The slices, one payload segment each: all of the shard's, in the reverse order of the placement,
    /// because the backward pass ends with the first.
    pub slices: Vec<SliceId>,
    /// The batches that the worker has taken from its input so far, in all incarnations; a restored worker
    /// continues after them.
    #[serde(default)]
    pub drawn: u64,
    /// Whether the reply carries the values for the worker's next step; it is sent when the policy lets that
    /// begin.
    pub pull: bool,
    /// Whether the reply carries the times of the push.
    #[serde(default)]
    pub traced: bool,
}

impl Content for Push {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        if self.id.sequence.0 == 0 {
            return Err(Invalid("the sequence of a push is 0, expected at least 1".into()));
        }
        one_segment_per_slice(&self.slices, segments)
    }
}

/// The verdict on a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It was applied to the variables.
    Applied,
    /// It is held for an update that aggregates several gradients.
    Held,
    /// The update for which it was meant was made without it.
    Stale {
        /// The number of updates since then.
        by: u64,
    },
    /// The shard has reached the job's last step, and did not apply it.
    Stopped,
}

/// Ps to worker: the verdict on a push, and the values after it if requested.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pushed {
    /// The verdict.
    pub verdict: Verdict,
    /// The updates that the shard has applied by now, which is the version of the values.
    pub version: Version,
    /// The step at which the shard stops.
    pub last_step: GlobalStep,
    /// The shard's version when the push arrived minus the version from which the gradient was computed; 0
    /// for a duplicate.
    #[serde(default)]
    pub staleness: u64,
    /// The times of the push, if requested.
    #[serde(default)]
    pub times: Option<PushTimes>,
    /// The slices whose values follow, one payload segment each.
    #[serde(default)]
    pub slices: Vec<SliceId>,
}

impl Content for Pushed {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        one_segment_per_slice(&self.slices, segments)
    }
}
