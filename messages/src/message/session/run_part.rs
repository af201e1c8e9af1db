//! Has another task run its part of a run.

use serde::{Deserialize, Serialize};

use super::run::counts;
use super::{Content, Fed, Invalid, no_payload};
use crate::id::{Incarnation, NodeId, TaskId};

/// The identity of a run in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RunKey {
    /// The task that the client has asked for the run.
    pub task: TaskId,
    /// The incarnation of that task.
    pub incarnation: Incarnation,
    /// The number of the run on that task.
    pub number: u64,
}

/// A request from the task that leads a run to another task: run your part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunPart {
    /// The run.
    pub run: RunKey,
    /// The number of the graph on the leading task.
    pub graph: u64,
    /// The nodes that the client feeds. The leading task sends their values where they are needed.
    #[serde(default)]
    pub feeds: Vec<Fed>,
    /// The nodes whose values the client gets.
    #[serde(default)]
    pub fetches: Vec<NodeId>,
    /// The nodes that are computed without returning their values.
    #[serde(default)]
    pub targets: Vec<NodeId>,
}

impl Content for RunPart {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        counts(&self.feeds, &self.fetches, &self.targets)?;
        no_payload(segments)
    }
}

/// The reply to [`RunPart`]: the task has run its part, and all values have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartRan {}

impl Content for PartRan {}
