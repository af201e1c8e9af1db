//! Runs a part of a graph: what some of its nodes need. The payload has one segment for each tensor.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, at_most, one_segment_per_tensor};
use crate::id::NodeId;
use crate::tensor::TensorSpec;

/// The maximum number of feeds, of fetches and of targets of one run.
pub const FETCHES_MAX: usize = 4096;

/// A request from a client to a server. The payload holds the values of the feeds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The number of the graph, from [`GraphOpened`](super::GraphOpened).
    pub graph: u64,
    /// The number of this run among the client's runs.
    pub number: u64,
    /// The nodes that get a value from the client.
    #[serde(default)]
    pub feeds: Vec<Fed>,
    /// The nodes whose values are returned.
    #[serde(default)]
    pub fetches: Vec<NodeId>,
    /// The nodes that are computed without returning their values.
    #[serde(default)]
    pub targets: Vec<NodeId>,
}

/// A node that gets a value from the client, and the shape and type of this value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fed {
    /// The node.
    pub node: NodeId,
    /// The shape and type of the value.
    pub tensor: TensorSpec,
}

/// Checks the numbers of feeds, fetches and targets.
pub(super) fn counts(feeds: &[Fed], fetches: &[NodeId], targets: &[NodeId]) -> Result<(), Invalid> {
    at_most("feeds", feeds.len(), FETCHES_MAX)?;
    at_most("fetches", fetches.len(), FETCHES_MAX)?;
    at_most("targets", targets.len(), FETCHES_MAX)
}

impl Content for Run {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        counts(&self.feeds, &self.fetches, &self.targets)?;
        one_segment_per_tensor(self.feeds.len(), segments)
    }
}

/// The reply of a server to [`Run`]. The payload holds the values of the fetches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ran {
    /// The shape and type of each fetch, in the order of the request.
    pub fetches: Vec<TensorSpec>,
}

impl Content for Ran {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        at_most("fetches", self.fetches.len(), FETCHES_MAX)?;
        one_segment_per_tensor(self.fetches.len(), segments)
    }
}
