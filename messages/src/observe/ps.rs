//! A ps task as it is seen from outside.

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
    /// Its shards; one that has not answered in time as it was when it did last.
    pub shards: Vec<(ShardId, ShardSnapshot)>,
    /// Bytes of buffers that are kept to be used again.
    pub pool_bytes: u64,
}

/// What came and went over the connections that a task has accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSnapshot {
    /// Connections accepted, in all.
    pub accepted: u64,
    /// Those that are gone, by reason; `closed` is the orderly one.
    pub closed: BTreeMap<String, u64>,
    /// What came.
    pub received: Traffic,
    /// What went.
    pub sent: Traffic,
    /// How long replies took to be written.
    pub writing: TimeHistogram,
    /// Payload bytes that have come and are not answered yet.
    pub in_flight_bytes: u64,
    /// Where no more is read.
    pub in_flight_bytes_max: u64,
}

/// What went one way over connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Messages, heartbeats left out.
    pub messages: u64,
    /// Their payload: tensors, without headers.
    pub payload_bytes: u64,
}

impl Traffic {
    /// Counts what another one has counted.
    pub const fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.payload_bytes += other.payload_bytes;
    }
}
