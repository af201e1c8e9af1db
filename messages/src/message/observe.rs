//! The state of a shard, for tests, for the report and for people: all of them read the same thing.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, no_payload};
use crate::id::Version;
use crate::observe::{ActorSnapshot, Buckets, TimeHistogram};

/// What is the state of this shard?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observe {
    /// Which shard of the ps task.
    pub shard: u32,
}

impl Content for Observe {}

/// The state of a shard at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardSnapshot {
    /// Updates applied.
    pub version: Version,
    /// Of these, so many had been applied when the shard was created: they came from a checkpoint.
    #[serde(default)]
    pub began: Version,
    /// Slices owned.
    pub slices: u64,
    /// Their bytes, without slots.
    pub bytes: u64,
    /// What became of every push.
    pub pushes: ShardCounters,
    /// Pulls answered, those within a push included.
    pub pulls: u64,
    /// Staleness of the pushes that are in the variables, in versions of this shard.
    pub staleness: StalenessHistogram,
    /// The same in steps: by how many the worker that is furthest ahead was ahead when the push came.
    #[serde(default)]
    pub steps_behind: StalenessHistogram,
    /// Workers that are counted now.
    #[serde(default)]
    pub members: u32,
    /// Pulls that wait for their step to begin.
    #[serde(default)]
    pub waiting: u32,
    /// Its task was told to stop by a signal, and waits for the chief to save.
    #[serde(default)]
    pub leaving: bool,
    /// Bytes of gradients that wait for others.
    #[serde(default)]
    pub held_bytes: u64,
    /// Bytes of what the optimizer and averages keep beside the values.
    #[serde(default)]
    pub slot_bytes: u64,
    /// Pushes refused because they were not finite; `pushes.refused` counts them, too.
    #[serde(default)]
    pub not_finite: u64,
    /// How long updates took, gradients of several included where they are added up.
    #[serde(default)]
    pub applying: TimeHistogram,
    /// Parts of checkpoints that were written, and how long that took.
    #[serde(default)]
    pub saving: TimeHistogram,
    /// Parts of checkpoints that could not be written.
    #[serde(default)]
    pub saves_failed: u64,
    /// What it has to do, and how long it takes for that.
    #[serde(default)]
    pub actor: ActorSnapshot,
}

impl Content for ShardSnapshot {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        no_payload(segments)
    }
}

/// What became of every push: V2, received = applied + held + stale + stopped + duplicate +
/// refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardCounters {
    /// All that came.
    pub received: u64,
    /// An update each.
    pub applied: u64,
    /// Counted towards an update of several.
    #[serde(default)]
    pub held: u64,
    /// Came after the update that they were meant for.
    #[serde(default)]
    pub stale: u64,
    /// Came after the last step.
    pub stopped: u64,
    /// Came again, and got the first reply again.
    pub duplicate: u64,
    /// Did not fit, or was not finite.
    pub refused: u64,
}

impl ShardCounters {
    /// V2.
    pub fn add_up(&self) -> bool {
        // Counts of a peer may be anything.
        let sum = [self.applied, self.held, self.stale, self.stopped, self.duplicate, self.refused]
            .into_iter()
            .try_fold(0u64, u64::checked_add);
        sum == Some(self.received)
    }
}

/// How stale gradients were when they were applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StalenessHistogram {
    /// Bucket 0 counts staleness 0; bucket i, 2^(i−1) up to 2^i − 1; the last one all beyond.
    pub buckets: Buckets<{ StalenessHistogram::BUCKETS }>,
    /// The greatest seen.
    pub max: u64,
    /// Of all, for the mean.
    pub sum: u64,
}

impl StalenessHistogram {
    /// How many buckets there are.
    pub const BUCKETS: usize = 16;

    /// Counts one push.
    pub fn record(&mut self, staleness: u64) {
        let bucket = (u64::BITS - staleness.leading_zeros()) as usize;
        self.buckets.record(bucket.min(Self::BUCKETS - 1));
        self.max = self.max.max(staleness);
        self.sum = self.sum.saturating_add(staleness);
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.buckets.count()
    }
}
