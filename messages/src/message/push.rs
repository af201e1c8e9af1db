//! A gradient on its way to a shard, and what became of it.

use serde::{Deserialize, Serialize};

use super::pull::one_segment_per_slice;
use super::{Content, Invalid};
use crate::id::{GlobalStep, Incarnation, LocalStep, PlacementEpoch, Sequence, SliceId, Version};
use crate::observe::PushTimes;

/// Which push it is: a retry bears the same identity, and changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PushId {
    /// The index of the worker task.
    pub worker: u32,
    /// Which life of that worker.
    pub incarnation: Incarnation,
    /// Which push within that life, from 1 on, one after the other.
    pub sequence: Sequence,
}

/// Worker to ps: the gradients of one step for all slices of one shard, one payload segment each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Push {
    /// Which shard of the ps task.
    pub shard: u32,
    /// Which push it is.
    pub id: PushId,
    /// The worker's step at which the gradient was computed.
    pub local_step: LocalStep,
    /// The placement that the worker holds.
    pub epoch: PlacementEpoch,
    /// Its digest (P2).
    pub placement_digest: u32,
    /// The shard's version at which the values were read that the gradient was computed from.
    pub version: Version,
    /// Which slices, one payload segment each: all of the shard's, the last in the placement first, as the backward pass
    /// ends with the first.
    pub slices: Vec<SliceId>,
    /// Batches that the worker has taken from its input so far, in all its lives: where it goes on after this push.
    #[serde(default)]
    pub drawn: u64,
    /// Whether the reply shall bear the values for the worker's next step; it comes when the policy lets that begin.
    pub pull: bool,
    /// Whether the reply shall bear when the push was where.
    #[serde(default)]
    pub traced: bool,
}

impl Content for Push {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        if self.id.sequence.0 == 0 {
            return Err(Invalid("a push's sequence begins at 1".into()));
        }
        one_segment_per_slice(&self.slices, segments)
    }
}

/// What became of a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is in the variables.
    Applied,
    /// It counts towards an update that is made of several gradients.
    Held,
    /// The update that it was meant for has been made without it.
    Stale {
        /// Updates since then.
        by: u64,
    },
    /// The shard has reached the job's last step; it was not applied.
    Stopped,
}

/// Ps to worker: what became of the push. With the values after it where they were asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pushed {
    /// What became of the gradient.
    pub verdict: Verdict,
    /// How many updates the shard has applied by now; the version of the values.
    pub version: Version,
    /// The step at which the shard stops.
    pub last_step: GlobalStep,
    /// By how many versions the values that the gradient was computed from were older than those that it met; 0 where the push
    /// had come before.
    #[serde(default)]
    pub staleness: u64,
    /// When the push was where, if it was asked for.
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
