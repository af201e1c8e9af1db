//! The result of a push or a pull of all shards. Knows no connection.

use std::sync::Arc;

use pushpull_messages::id::{GlobalStep, Version};
use pushpull_messages::message::Verdict;

use super::traced_push::TracedPush;
use super::values::Values;

/// The result of a push or a pull.
#[derive(Debug)]
pub struct Exchange {
    /// The newest values.
    pub values: Arc<Values>,
    /// The version of each shard's values.
    pub versions: Vec<Version>,
    /// The step at which each shard stops.
    pub last_steps: Vec<GlobalStep>,
    /// The verdict of each shard that was pushed to; empty after a pull.
    pub verdicts: Vec<Verdict>,
    /// Every push, if the step is traced.
    pub(crate) pushes: Vec<TracedPush>,
}

impl Exchange {
    /// Returns the greatest number of updates that any shard has applied.
    pub fn global_step(&self) -> GlobalStep {
        GlobalStep(self.versions.iter().map(|version| version.0).max().unwrap_or(0))
    }

    /// Returns true if any shard has applied the gradient, or holds it for an aggregate.
    pub fn counts(&self) -> bool {
        self.verdicts.iter().any(|verdict| matches!(verdict, Verdict::Applied | Verdict::Held))
    }

    /// Returns true if every shard has reached its last step and all shards name the same one. Shards name
    /// different last steps while the chief is still telling them of a new one.
    pub fn is_complete(&self) -> bool {
        let same = self.last_steps.windows(2).all(|pair| pair[0] == pair[1]);
        same && self.versions.iter().zip(&self.last_steps).all(|(version, last)| version.0 >= last.0)
    }
}
