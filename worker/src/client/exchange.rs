//! The result of a push to all shards, or of a pull from all of them. This module must not depend on
//! connections.

use std::sync::Arc;

use pushpull_messages::id::{GlobalStep, Version};
use pushpull_messages::message::{StageReply, Verdict};

use super::traced_push::TracedPush;
use super::value_set::ValueSet;
use super::values::Values;

/// The result of a push to all shards, or of a pull from all of them.
#[derive(Debug)]
pub struct Exchange {
    /// The values of all variables, taken from the replies.
    pub values: Arc<Values>,
    /// The version of each shard's values.
    pub versions: Vec<Version>,
    /// The job's last step according to each shard.
    pub last_steps: Vec<GlobalStep>,
    /// The verdict of each shard that received a push; empty after a pull.
    pub verdicts: Vec<Verdict>,
    /// The times of every push; empty unless the step is traced.
    pub(crate) pushes: Vec<TracedPush>,
}

/// The replies of the shards to a push that pulls no values.
#[derive(Debug)]
pub struct Acknowledgement {
    /// The version of each shard after the push.
    pub versions: Vec<Version>,
    /// The job's last step according to each shard.
    pub last_steps: Vec<GlobalStep>,
    /// The verdict of each shard that received the push.
    pub verdicts: Vec<Verdict>,
}

impl Exchange {
    /// Adds the replies of the shards of a replica's other stages. The values become the leader's part of
    /// `set`.
    pub(super) fn joined(self, set: Arc<ValueSet>, others: &[StageReply]) -> Self {
        let Self { values, mut versions, mut last_steps, mut verdicts, pushes } = self;
        let values = Arc::new(Arc::unwrap_or_clone(values).in_set(set));
        versions.extend(others.iter().map(|reply| reply.version));
        last_steps.extend(others.iter().map(|reply| reply.last_step));
        verdicts.extend(others.iter().filter_map(|reply| reply.verdict));
        Self { values, versions, last_steps, verdicts, pushes }
    }

    /// Returns the values again, with their versions, for another step that begins from them.
    pub(crate) fn read_again(&self) -> Self {
        Self {
            values: Arc::clone(&self.values),
            versions: self.versions.clone(),
            last_steps: self.last_steps.clone(),
            verdicts: Vec::new(),
            pushes: Vec::new(),
        }
    }

    /// Returns the greatest number of updates that any shard has applied.
    pub fn global_step(&self) -> GlobalStep {
        GlobalStep(self.versions.iter().map(|version| version.0).max().unwrap_or(0))
    }

    /// Returns true if any shard has applied the gradients, or holds them for aggregation.
    pub fn counts(&self) -> bool {
        self.verdicts.iter().any(|verdict| matches!(verdict, Verdict::Applied | Verdict::Held))
    }

    /// Returns true if all shards report the same last step and every shard has reached it. The reported
    /// last steps differ while the chief is still announcing a new last step to the shards.
    pub fn is_complete(&self) -> bool {
        let same = self.last_steps.windows(2).all(|pair| pair[0] == pair[1]);
        same && self.is_stopped()
    }

    /// Returns true if every shard has reached the last step that it reports. The reported last steps may
    /// differ between shards.
    pub fn is_stopped(&self) -> bool {
        self.versions.iter().zip(&self.last_steps).all(|(version, last)| version.0 >= last.0)
    }
}
