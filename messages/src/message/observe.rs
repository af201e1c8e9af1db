//! The state of a shard, which tests, the report and people read alike.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, no_payload};
use crate::id::Version;
use crate::observe::{ActorSnapshot, Buckets, TimeHistogram};

/// To ps: a request for the state of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observe {
    /// The shard's index in the ps task.
    pub shard: u32,
}

impl Content for Observe {}

/// The state of a shard at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardSnapshot {
    /// The updates applied.
    pub version: Version,
    /// The updates that a checkpoint already contained when the shard was created.
    #[serde(default)]
    pub began: Version,
    /// The slices owned.
    pub slices: u64,
    /// The bytes of the slices, without slots.
    pub bytes: u64,
    /// The pushes by verdict.
    pub pushes: ShardCounters,
    /// The pulls answered, including those of pushes.
    pub pulls: u64,
    /// The staleness of the applied pushes, in versions of this shard.
    pub staleness: StalenessHistogram,
    /// The staleness in steps: how far the fastest worker was ahead when the push arrived.
    #[serde(default)]
    pub steps_behind: StalenessHistogram,
    /// The workers in the membership.
    #[serde(default)]
    pub members: u32,
    /// The pulls that wait for their step to begin.
    #[serde(default)]
    pub waiting: u32,
    /// Whether a signal told the task to stop, so that it waits for the chief to save.
    #[serde(default)]
    pub leaving: bool,
    /// The bytes of gradients that wait for others.
    #[serde(default)]
    pub held_bytes: u64,
    /// The bytes of slots and averages.
    #[serde(default)]
    pub slot_bytes: u64,
    /// The pushes refused because they were not finite; `pushes.refused` includes them.
    #[serde(default)]
    pub not_finite: u64,
    /// The times of updates, including the aggregation of gradients.
    #[serde(default)]
    pub applying: TimeHistogram,
    /// The times of writing parts of checkpoints.
    #[serde(default)]
    pub saving: TimeHistogram,
    /// The parts of checkpoints that could not be written.
    #[serde(default)]
    pub saves_failed: u64,
    /// The queue and the handling times of the shard's actor.
    #[serde(default)]
    pub actor: ActorSnapshot,
}

impl Content for ShardSnapshot {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        no_payload(segments)
    }
}

/// The pushes of a shard by verdict. V2: received = applied + held + stale + stopped + duplicate + refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardCounters {
    /// All pushes received.
    pub received: u64,
    /// The pushes applied as an update each.
    pub applied: u64,
    /// The pushes aggregated with others into an update.
    #[serde(default)]
    pub held: u64,
    /// The pushes received after the update for which they were meant.
    #[serde(default)]
    pub stale: u64,
    /// The pushes received after the last step.
    pub stopped: u64,
    /// The pushes received again, which got their first verdict again.
    pub duplicate: u64,
    /// The pushes that did not fit or were not finite.
    pub refused: u64,
}

impl ShardCounters {
    /// Returns true if V2 holds.
    pub fn add_up(&self) -> bool {
        // Checked, because the counts of a peer may have any value.
        let sum = [self.applied, self.held, self.stale, self.stopped, self.duplicate, self.refused]
            .into_iter()
            .try_fold(0u64, u64::checked_add);
        sum == Some(self.received)
    }
}

/// A histogram of the staleness of gradients when they were applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StalenessHistogram {
    /// The counts: bucket 0 of staleness 0, bucket i of 2^(i−1) to 2^i − 1, and the last one of all beyond.
    pub buckets: Buckets<{ StalenessHistogram::BUCKETS }>,
    /// The greatest staleness.
    pub max: u64,
    /// The sum of all, for the mean.
    pub sum: u64,
}

impl StalenessHistogram {
    /// The number of buckets.
    pub const BUCKETS: usize = 16;

    /// Counts a push.
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
