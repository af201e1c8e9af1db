//! Pushes a gradient to a shard, which replies with its verdict.

use serde::{Deserialize, Serialize};

use super::pull::one_segment_per_slice;
use super::{Content, Invalid};
use crate::id::{GlobalStep, Incarnation, LocalStep, PlacementEpoch, Sequence, SliceId, Version};
use crate::observe::PushTimes;

/// The maximum number of workers whose gradients are in a push: the maximum number of workers of a job.
const CONTRIBUTIONS_MAX: u64 = 1 << 16;

/// The identity of a push. A retry has the same identity, so the shard recognises the retry and does not
/// apply its gradients again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PushId {
    /// The index of the worker task.
    pub worker: u32,
    /// The incarnation of the worker.
    pub incarnation: Incarnation,
    /// The number of the push in this incarnation of the worker, counted from 1 without gaps.
    pub sequence: Sequence,
}

/// The push of a worker whose gradients another worker has added to its own. The sum counts as one push of
/// each of these workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contribution {
    /// The identity that the worker's push has if the worker sends it alone.
    pub id: PushId,
    /// The worker's step at which the gradients were computed.
    pub local_step: LocalStep,
    /// The number of batches that the worker has taken from its input, as in [`Push::drawn`].
    #[serde(default)]
    pub drawn: u64,
}

/// A request from a worker to a ps task: the gradients of one step for all slices of one shard, one payload
/// segment per slice.
///
/// The gradients may be the sum of the worker's own gradients and those of other workers. All of them were
/// computed from the same version. The shard counts the gradients of all these workers or of none: if it has
/// counted only some of them, it refuses the push with the code
/// [`Alone`](super::RefusalCode::Alone).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Push {
    /// The shard's index in the ps task.
    pub shard: u32,
    /// The identity of the push.
    pub id: PushId,
    /// The worker's step at which the gradients were computed.
    pub local_step: LocalStep,
    /// The epoch of the worker's placement.
    pub epoch: PlacementEpoch,
    /// The digest of the worker's placement, which must equal that of the shard's placement.
    pub placement_digest: u32,
    /// The shard's version from which the gradients were computed.
    pub version: Version,
    /// All slices of the shard, in the order of the payload segments. This order is the reverse of the order
    /// in the placement, because the backward pass computes the gradients of the first variables last.
    pub slices: Vec<SliceId>,
    /// The number of batches that the worker has taken from its input so far, counted over all its
    /// incarnations. A worker that is restored from a checkpoint continues after these batches.
    #[serde(default)]
    pub drawn: u64,
    /// Whether the reply must carry the values for the worker's next step. If so, the shard replies when the
    /// policy lets that step begin.
    pub pull: bool,
    /// Whether the worker's step is traced, so that the reply must carry the times of the push.
    #[serde(default)]
    pub traced: bool,
    /// The pushes of other workers whose gradients are in the sum, in the order of the workers; empty if the
    /// gradients are the worker's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub with: Vec<Contribution>,
}

impl Push {
    /// Returns the worker's own part of this push, as a contribution.
    pub const fn own(&self) -> Contribution {
        Contribution { id: self.id, local_step: self.local_step, drawn: self.drawn }
    }

    /// Iterates over the contributions of all workers, beginning with that of the sender.
    pub fn contributions(&self) -> impl Iterator<Item = Contribution> + '_ {
        std::iter::once(self.own()).chain(self.with.iter().copied())
    }

    /// Returns the number of workers whose gradients are in the sum.
    pub fn count(&self) -> u64 {
        1 + self.with.len() as u64
    }
}

impl Content for Push {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        if self.contributions().any(|own| own.id.sequence.0 == 0) {
            return Err(Invalid("the sequence of a push is 0, expected at least 1".into()));
        }
        if self.count() > CONTRIBUTIONS_MAX {
            let count = self.count();
            return Err(Invalid(format!(
                "a push has {count} contributions, expected at most {CONTRIBUTIONS_MAX}"
            )));
        }
        let in_order = self.with.is_sorted_by(|one, next| one.id.worker < next.id.worker);
        if !in_order || self.with.iter().any(|other| other.id.worker == self.id.worker) {
            let expected = "expected each other worker at most once, in the order of the workers";
            return Err(Invalid(format!("the contributions of a push are not in order, {expected}")));
        }
        one_segment_per_slice(&self.slices, segments)
    }
}

/// The verdict of a shard on a push: what the shard did with the push's gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The push was applied to the variables as an update of its own.
    Applied,
    /// The push is held for an update that aggregates the gradients of several pushes.
    Held,
    /// The push was not applied, because it arrived after the update for which it was meant.
    Stale {
        /// The shard's version minus the version from which the gradients were computed.
        by: u64,
    },
    /// The shard has reached the job's last step and did not apply the push.
    Stopped,
}

/// The reply of a ps task to [`Push`]: the verdict, and the values for the worker's next step if requested.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pushed {
    /// The verdict on the push.
    pub verdict: Verdict,
    /// The number of updates that the shard has applied when it replies. This is the version of the values
    /// in the reply.
    pub version: Version,
    /// The step at which the shard stops.
    pub last_step: GlobalStep,
    /// The version of the shard when the push arrived, minus the version from which the gradients were
    /// computed; 0 for a duplicate.
    #[serde(default)]
    pub staleness: u64,
    /// The times of the push, if the worker requested them.
    #[serde(default)]
    pub times: Option<PushTimes>,
    /// The slices whose values the payload contains, one segment each; empty if no values were requested, or
    /// if they were sent ahead as [`Drafted`].
    #[serde(default)]
    pub slices: Vec<SliceId>,
}

impl Content for Pushed {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        one_segment_per_slice(&self.slices, segments)
    }
}

/// The values that a push makes if it is applied, sent before its reply. The ps task computes them while the
/// push arrives. They are valid only if the reply, [`Pushed`], has the same version and no slices; they are
/// then the values of that reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drafted {
    /// The version that the push makes if it is applied.
    pub version: Version,
    /// The slices whose values the payload contains, one segment each, in the order of the push's gradients.
    pub slices: Vec<SliceId>,
}

impl Content for Drafted {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        one_segment_per_slice(&self.slices, segments)
    }
}
