//! The handshake: both ends identify themselves before any other message.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, is_zero, no_payload, text_within};
use crate::cluster::ClusterSpec;
use crate::id::{Incarnation, TaskId};
use crate::placement::SHARDS_PER_TASK_MAX;

/// The version of the protocol, that is, of all messages in this crate.
pub const PROTOCOL: u16 = 12;
/// The maximum number of bytes in the address of an HTTP endpoint.
const HTTP_BYTES_MAX: usize = 272;

/// The first frame on every connection, in which the dialling task identifies itself and its cluster.
///
/// The sender may be a guest: a client program, which is not a task of a cluster. A guest knows neither a
/// cluster spec nor the task behind the address that it dials, so it leaves out both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// The dialling task's [`PROTOCOL`].
    pub protocol: u16,
    /// The id of the dialling task.
    pub task: TaskId,
    /// The incarnation of the dialling task.
    pub incarnation: Incarnation,
    /// The task that the dialling task expects to reach; `None` from a guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<TaskId>,
    /// The cluster spec of the dialling task; `None` from a guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterSpec>,
    /// The digest of the graph that the dialling task was given when it was started, if any.
    #[serde(default)]
    pub graph: Option<u32>,
    /// The `host:port` of the HTTP endpoint at which the dialling task can be observed, if it has one; with
    /// `https://` before it if the endpoint speaks HTTPS.
    #[serde(default)]
    pub http: Option<String>,
    /// A random number that distinguishes two starts of the dialling task that have the same incarnation
    /// number; 0 if the task sends no random number.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub nonce: u64,
}

impl Hello {
    /// Returns the task that a member of a cluster expects to reach, and its cluster spec; `None` if the
    /// sender is a guest.
    pub fn membership(&self) -> Option<(TaskId, &ClusterSpec)> {
        self.to.zip(self.cluster.as_ref())
    }
}

impl Content for Hello {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        if self.to.is_some() != self.cluster.is_some() {
            let expected = "expected both a task to reach and a cluster spec, or neither from a client";
            return Err(Invalid(format!("got only one of the fields of a cluster, {expected}")));
        }
        self.http
            .iter()
            .try_for_each(|http| text_within("the address of an endpoint", http, HTTP_BYTES_MAX))?;
        no_payload(segments)
    }
}

/// The reply to [`Hello`], in which the answering task identifies itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    /// The answering task's [`PROTOCOL`].
    pub protocol: u16,
    /// The id of the answering task.
    pub task: TaskId,
    /// The incarnation of the answering task.
    pub incarnation: Incarnation,
    /// The number of shards that the answering task runs, if it is a ps task.
    #[serde(default)]
    pub shards: u32,
    /// The largest payload that the answering task accepts, in bytes.
    pub payload_bytes_max: u64,
    /// The maximum number of unanswered requests that the answering task accepts on one connection.
    pub requests_max: u32,
    /// The `host:port` of the HTTP endpoint at which the answering task can be observed, if it has one; with
    /// `https://` before it if the endpoint speaks HTTPS.
    #[serde(default)]
    pub http: Option<String>,
    /// A random number that distinguishes two starts of the answering task that have the same incarnation
    /// number; 0 if the task sends no random number.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub nonce: u64,
}

impl Content for Welcome {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        if self.shards > SHARDS_PER_TASK_MAX {
            let shards = self.shards;
            return Err(Invalid(format!("got {shards} shards, expected at most {SHARDS_PER_TASK_MAX}")));
        }
        self.http
            .iter()
            .try_for_each(|http| text_within("the address of an endpoint", http, HTTP_BYTES_MAX))?;
        no_payload(segments)
    }
}
