//! The limits on frames, which are checked before a byte is allocated.

use pushpull_messages::cluster::{ADDRESS_BYTES_MAX, TASKS_PER_JOB_MAX};

/// The most bytes in a header after the handshake: a large graph and its placement fit.
pub const HEADER_BYTES_MAX: u32 = 64 << 20;
/// The most bytes in the first header of a connection, from an unknown peer.
const STRANGER_HEADER_BYTES_MAX: u32 = 4 << 20;
/// The size of the largest cluster spec: chief, ps, workers and evaluators, each address with its length.
const CLUSTER_BYTES_MAX: usize = 3 * TASKS_PER_JOB_MAX * (ADDRESS_BYTES_MAX + 3);

/// The limits on a frame that one end accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes in a header.
    pub header_bytes_max: u32,
    /// The most bytes in a payload.
    pub payload_bytes_max: u64,
}

impl Limits {
    /// The limits until the handshake, in which no message has a payload.
    pub const STRANGER: Self = Self { header_bytes_max: STRANGER_HEADER_BYTES_MAX, payload_bytes_max: 0 };
}

impl Default for Limits {
    /// Returns the limits after the handshake: 2 GiB are enough for all slices of a large shard.
    fn default() -> Self {
        Self { header_bytes_max: HEADER_BYTES_MAX, payload_bytes_max: 2 << 30 }
    }
}

const _: () = assert!(STRANGER_HEADER_BYTES_MAX <= HEADER_BYTES_MAX);
const _: () = assert!(CLUSTER_BYTES_MAX + 4096 <= STRANGER_HEADER_BYTES_MAX as usize);
