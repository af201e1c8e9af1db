//! What a ps task shows of itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::times::TimeHistogram;
use crate::id::ShardId;
use crate::message::ShardSnapshot;

/// The state of a ps task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PsSnapshot {
    /// Its connections.
    pub server: ServerSnapshot,
    /// Whether the chief is connected to it.
    #[serde(default)]
    pub chief_connected: bool,
    /// Its shards; one that did not answer in time is shown as it last did.
    pub shards: Vec<(ShardId, ShardSnapshot)>,
    /// Bytes of buffers kept for reuse.
    pub pool_bytes: u64,
}

/// The traffic over the connections that a task has accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSnapshot {
    /// All connections accepted so far.
    pub accepted: u64,
    /// The connections that have ended, by reason; `closed` is the orderly one.
    pub closed: BTreeMap<String, u64>,
    /// The messages received.
    pub received: Traffic,
    /// The messages sent.
    pub sent: Traffic,
    /// How long it took to write replies.
    pub writing: TimeHistogram,
    /// Payload bytes received and not answered yet.
    pub in_flight_bytes: u64,
    /// The bytes in flight beyond which no more is read.
    pub in_flight_bytes_max: u64,
}

/// The traffic in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Messages, without heartbeats.
    pub messages: u64,
    /// Bytes of their payloads: tensors, without headers.
    pub payload_bytes: u64,
}

impl Traffic {
    /// Adds another count to this one.
    pub const fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.payload_bytes += other.payload_bytes;
    }
}
