//! The state of a shard. It is used by tests, by the chief's report and by status displays.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, no_payload};
use crate::id::Version;
use crate::observe::{ActorSnapshot, Buckets, TimeHistogram};

/// A request to a ps task for the state of one of its shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observe {
    /// The shard's index in the ps task.
    pub shard: u32,
}

impl Content for Observe {}

/// The state of a shard at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShardSnapshot {
    /// The number of updates that the shard has applied.
    pub version: Version,
    /// The version at which the shard was created: the number of updates in the checkpoint from which the
    /// shard started, or 0.
    #[serde(default)]
    pub began: Version,
    /// The number of slices that the shard owns.
    pub slices: u64,
    /// The size of the slices in bytes, without optimizer slots.
    pub bytes: u64,
    /// The number of pushes with each verdict.
    pub pushes: ShardCounters,
    /// The number of pulls answered, including pushes whose reply carried the values.
    pub pulls: u64,
    /// The staleness of the pushes that were applied or held, in versions of this shard.
    pub staleness: StalenessHistogram,
    /// The staleness of the pushes that were applied or held, in steps: how many steps the fastest worker
    /// was ahead of the sender when the push arrived.
    #[serde(default)]
    pub steps_behind: StalenessHistogram,
    /// The number of workers in the membership.
    #[serde(default)]
    pub members: u32,
    /// The number of workers that wait for values until their step may begin, or whose push waits until the
    /// shard has its learning rate.
    #[serde(default)]
    pub waiting: u32,
    /// Whether the task, after a signal to stop, waits for the chief to save a checkpoint.
    #[serde(default)]
    pub leaving: bool,
    /// The size, in bytes, of held gradients, which wait for the gradients of other workers or for the
    /// learning rate.
    #[serde(default)]
    pub held_bytes: u64,
    /// The size of optimizer slots and moving averages, in bytes.
    #[serde(default)]
    pub slot_bytes: u64,
    /// The number of pushes refused because they had NaN or infinite elements; `pushes.refused` includes
    /// them.
    #[serde(default)]
    pub not_finite: u64,
    /// The durations of updates, including the aggregation of gradients.
    #[serde(default)]
    pub applying: TimeHistogram,
    /// The durations of writing the shard's checkpoint files.
    #[serde(default)]
    pub saving: TimeHistogram,
    /// The number of checkpoint files of the shard that could not be written.
    #[serde(default)]
    pub saves_failed: u64,
    /// The factor by which hooks have multiplied the learning rate; `None` if no hook has changed the
    /// learning rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learning_rate_factor: Option<f32>,
    /// The state of the shard's actor: its queue and its handling times.
    #[serde(default)]
    pub actor: ActorSnapshot,
}

impl Content for ShardSnapshot {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        no_payload(segments)
    }
}

/// The number of pushes to a shard with each verdict. Every push received has exactly one verdict (property
/// V2): received = applied + held + stale + stopped + duplicate + refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardCounters {
    /// The number of all pushes that the shard has received.
    pub received: u64,
    /// The number of pushes that were applied, each as a separate update.
    pub applied: u64,
    /// The number of pushes that were held for an update that aggregates several pushes.
    #[serde(default)]
    pub held: u64,
    /// The number of pushes that arrived after the update for which they were meant.
    #[serde(default)]
    pub stale: u64,
    /// The number of pushes that arrived after the last step.
    pub stopped: u64,
    /// The number of pushes received again, to which the shard replied with the verdict on the first copy.
    pub duplicate: u64,
    /// The number of pushes refused because they did not fit the shard or were not finite.
    pub refused: u64,
}

impl ShardCounters {
    /// Returns true if the counts of all verdicts add up to `received`, that is, if every push received has
    /// exactly one verdict (property V2).
    pub fn add_up(&self) -> bool {
        // The additions are checked, because the counts come from a peer and may have any value.
        let sum = [self.applied, self.held, self.stale, self.stopped, self.duplicate, self.refused]
            .into_iter()
            .try_fold(0u64, u64::checked_add);
        sum == Some(self.received)
    }
}

/// A histogram of the staleness of pushes, each measured when the push arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StalenessHistogram {
    /// The counts. Bucket 0 counts staleness 0, bucket i counts the values from 2^(i−1) to 2^i − 1, and the
    /// last bucket also counts all greater values.
    pub buckets: Buckets<{ StalenessHistogram::BUCKETS }>,
    /// The greatest staleness recorded.
    pub max: u64,
    /// The sum of all staleness values, from which the mean is computed.
    pub sum: u64,
}

impl StalenessHistogram {
    /// The number of buckets.
    pub const BUCKETS: usize = 16;

    /// Counts one push with this staleness.
    pub fn record(&mut self, staleness: u64) {
        let bucket = (u64::BITS - staleness.leading_zeros()) as usize;
        self.buckets.record(bucket.min(Self::BUCKETS - 1));
        self.max = self.max.max(staleness);
        self.sum = self.sum.saturating_add(staleness);
    }

    /// Returns the number of pushes counted.
    pub fn count(&self) -> u64 {
        self.buckets.count()
    }
}
