//! Closes a graph that was opened on a server. Its variables stay.

use serde::{Deserialize, Serialize};

use super::{Content, Home};

/// A request to a server: forget a graph. When a client disconnects, its graphs are closed, too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CloseGraph {
    /// The number of the graph.
    pub graph: u64,
    /// For a request from another server: the server that the client has opened the graph on.
    #[serde(default)]
    pub home: Option<Home>,
}

impl Content for CloseGraph {}

/// The reply to [`CloseGraph`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphClosed {}

impl Content for GraphClosed {}
