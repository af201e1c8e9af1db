//! Opens a graph on a server. The graph is the only segment of the payload, as MessagePack.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, at_most, container_name};
use crate::cluster::TASKS_PER_JOB_MAX;
use crate::graph::GraphSpec;
use crate::id::{Incarnation, TaskId};
use crate::message::{DEPTH_MAX, decoder};

/// A request to a server: keep this graph, so that its parts can be run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenGraph {
    /// The container of the graph's variables; empty for the default container.
    pub container: String,
    /// Whether an operation that requests a device which does not exist runs on another device of the task.
    #[serde(default)]
    pub soft_placement: bool,
    /// Whether to return the device of each node.
    #[serde(default)]
    pub placement: bool,
    /// For a request from another server: the server that the client has opened the graph on.
    #[serde(default)]
    pub home: Option<Home>,
}

/// The server on which a client has opened a graph, and what all servers need to know in order to place the
/// graph alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Home {
    /// The server's task. It runs the operations that request no task.
    pub task: TaskId,
    /// The incarnation of the server.
    pub incarnation: Incarnation,
    /// The number of the graph on that server.
    pub graph: u64,
    /// A number that identifies the client, whose quota the variables count against that it creates.
    pub client: u64,
    /// The number of CPU devices of each task, in the order of the cluster spec.
    pub cpus: Vec<u32>,
    /// Whether runs of the graph must neither change nor create variables.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

impl Content for OpenGraph {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        container_name(&self.container)?;
        if let Some(home) = &self.home {
            at_most("tasks", home.cpus.len(), 64 * TASKS_PER_JOB_MAX)?;
        }
        match segments.len() {
            1 => Ok(()),
            count => Err(Invalid(format!("got {count} payload segments, expected the graph"))),
        }
    }
}

/// Encodes a graph for the payload of [`OpenGraph`].
pub fn encode_graph(graph: &GraphSpec) -> Vec<u8> {
    rmp_serde::to_vec_named(graph).expect("plain data encodes")
}

/// Decodes a graph from the payload of [`OpenGraph`]. The graph is not yet validated.
///
/// # Errors
/// If the bytes are not a graph.
pub fn decode_graph(bytes: &[u8]) -> Result<GraphSpec, Invalid> {
    decoder::from_bytes(bytes, DEPTH_MAX)
        .map_err(|error| Invalid(format!("the graph cannot be decoded: {error}")))
}

/// The reply of a server to [`OpenGraph`]. If the request asked for it, the only segment of the payload is a
/// tensor of text with the device of each node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphOpened {
    /// The number of the graph on this connection.
    pub graph: u64,
}

impl Content for GraphOpened {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        at_most("payload segments", segments.len(), 1)
    }
}
