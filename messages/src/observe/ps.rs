//! The snapshot of a ps task.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::times::TimeHistogram;
use crate::id::ShardId;
use crate::message::ShardSnapshot;

/// The state of a ps task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PsSnapshot {
    /// The connections of the task.
    pub server: ServerSnapshot,
    /// Whether the chief is connected to the task.
    #[serde(default)]
    pub chief_connected: bool,
    /// The shards; one that has not replied in time is as in its last reply.
    pub shards: Vec<(ShardId, ShardSnapshot)>,
    /// The bytes of buffers that are kept for reuse.
    pub pool_bytes: u64,
}

/// The state of the connections that a task has accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSnapshot {
    /// The connections accepted in all.
    pub accepted: u64,
    /// The connections closed, by reason; `closed` is the orderly one.
    pub closed: BTreeMap<String, u64>,
    /// The traffic received.
    pub received: Traffic,
    /// The traffic sent.
    pub sent: Traffic,
    /// The times that replies took to be written.
    pub writing: TimeHistogram,
    /// The payload bytes received and not yet answered.
    pub in_flight_bytes: u64,
    /// The payload bytes at which reading pauses.
    pub in_flight_bytes_max: u64,
}

/// The traffic in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// The messages, without heartbeats.
    pub messages: u64,
    /// The bytes of their payload: tensors, without headers.
    pub payload_bytes: u64,
}

impl Traffic {
    /// Adds the counts of `other`.
    pub const fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.payload_bytes += other.payload_bytes;
    }
}
