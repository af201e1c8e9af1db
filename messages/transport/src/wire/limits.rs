//! What a connection takes at most; checked before a byte is allocated.

use pushpull_messages::cluster::{ADDRESS_BYTES_MAX, TASKS_PER_JOB_MAX};

/// Most bytes in a header, once both ends know each other: a large graph and its placement fit.
pub const HEADER_BYTES_MAX: u32 = 64 << 20;
/// Most bytes in the first header of a connection, from a stranger.
const STRANGER_HEADER_BYTES_MAX: u32 = 4 << 20;
/// The largest cluster spec: chief, ps, workers and evaluators, each with its length in front.
const CLUSTER_BYTES_MAX: usize = 3 * TASKS_PER_JOB_MAX * (ADDRESS_BYTES_MAX + 3);

/// What one end takes in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes in a header.
    pub header_bytes_max: u32,
    /// Most bytes in a payload.
    pub payload_bytes_max: u64,
}

impl Limits {
    /// Until the handshake: nobody needs a payload to introduce himself.
    pub const STRANGER: Self = Self { header_bytes_max: STRANGER_HEADER_BYTES_MAX, payload_bytes_max: 0 };
}

impl Default for Limits {
    /// After the handshake: a payload of 2 GiB is all slices of a large shard.
    fn default() -> Self {
        Self { header_bytes_max: HEADER_BYTES_MAX, payload_bytes_max: 2 << 30 }
    }
}

const _: () = assert!(STRANGER_HEADER_BYTES_MAX <= HEADER_BYTES_MAX);
const _: () = assert!(CLUSTER_BYTES_MAX + 4096 <= STRANGER_HEADER_BYTES_MAX as usize);
