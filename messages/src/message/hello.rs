//! The handshake: both ends say who they are before anything else is heard.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, no_payload, text_within};
use crate::cluster::ClusterSpec;
use crate::id::{Incarnation, TaskId};
use crate::placement::SHARDS_PER_TASK_MAX;

/// The version of everything in this crate that travels.
pub const PROTOCOL: u16 = 1;
/// Most bytes in the address of an endpoint: a host name and a port.
const HTTP_BYTES_MAX: usize = 264;

/// The first frame on every connection: who dials, and in which cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`] of the one who dials.
    pub protocol: u16,
    /// Who dials.
    pub task: TaskId,
    /// Which life of that task.
    pub incarnation: Incarnation,
    /// Whom it believes to have reached.
    pub to: TaskId,
    /// The cluster spec it holds.
    pub cluster: ClusterSpec,
    /// The digest of the graph that it was started with, where it was started with one.
    #[serde(default)]
    pub graph: Option<u32>,
    /// Where the one who dials can be observed, as `host:port`.
    #[serde(default)]
    pub http: Option<String>,
}

impl Content for Hello {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        self.http
            .iter()
            .try_for_each(|http| text_within("the address of an endpoint", http, HTTP_BYTES_MAX))?;
        no_payload(segments)
    }
}

/// The answer to [`Hello`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    /// [`PROTOCOL`] of the one who answers.
    pub protocol: u16,
    /// Who answers.
    pub task: TaskId,
    /// Which life of that task.
    pub incarnation: Incarnation,
    /// How many shards it runs, if it is a ps.
    #[serde(default)]
    pub shards: u32,
    /// The largest payload it takes, in bytes.
    pub payload_bytes_max: u64,
    /// How many requests it takes on one connection before it has answered the first.
    pub requests_max: u32,
    /// Where the one who answers can be observed, as `host:port`.
    #[serde(default)]
    pub http: Option<String>,
}

impl Content for Welcome {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        if self.shards > SHARDS_PER_TASK_MAX {
            return Err(Invalid(format!("at most {SHARDS_PER_TASK_MAX} shards, and got {}", self.shards)));
        }
        self.http
            .iter()
            .try_for_each(|http| text_within("the address of an endpoint", http, HTTP_BYTES_MAX))?;
        no_payload(segments)
    }
}
