//! The snapshot of a ps task: its connections, shards and buffers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::times::TimeHistogram;
use crate::id::ShardId;
use crate::message::ShardSnapshot;

/// The state of a ps task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PsSnapshot {
    /// The state of the connections that the task has accepted.
    pub server: ServerSnapshot,
    /// Whether the chief is connected to the task.
    #[serde(default)]
    pub chief_connected: bool,
    /// The shards and their states. If a shard has not replied in time, its entry has the state from its
    /// last reply.
    pub shards: Vec<(ShardId, ShardSnapshot)>,
    /// The size, in bytes, of unused buffers that are kept for reuse.
    pub pool_bytes: u64,
}

/// The state of the connections that a task has accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSnapshot {
    /// The number of connections accepted so far.
    pub accepted: u64,
    /// The number of connections closed, by reason. The reason `closed` means that the connection ended in
    /// an orderly way.
    pub closed: BTreeMap<String, u64>,
    /// The number of refused requests, by the code of the refusal.
    #[serde(default)]
    pub refused: BTreeMap<String, u64>,
    /// The traffic received on all connections.
    pub received: Traffic,
    /// The traffic sent on all connections.
    pub sent: Traffic,
    /// The time taken to write each reply to its connection.
    pub writing: TimeHistogram,
    /// The number of bytes that unanswered requests take. Payloads count, and so do large headers.
    pub in_flight_bytes: u64,
    /// The number of bytes in flight at which the task stops reading payloads and large headers.
    pub in_flight_bytes_max: u64,
}

/// The traffic in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// The number of messages, without heartbeats.
    pub messages: u64,
    /// The number of payload bytes in these messages: tensors, without headers.
    pub payload_bytes: u64,
}

impl Traffic {
    /// Adds the counts of `other` to these counts.
    pub const fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.payload_bytes += other.payload_bytes;
    }
}
