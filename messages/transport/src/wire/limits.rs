//! The limits on the sizes of frames, which are checked before any memory is allocated for a frame.

use pushpull_messages::cluster::{ADDRESS_BYTES_MAX, TASKS_PER_JOB_MAX};

/// The largest size of a header after the handshake, in bytes. This is enough for a large graph and its
/// placement.
pub const HEADER_BYTES_MAX: u32 = 64 << 20;
/// The largest size of the first header of a connection, in bytes. The peer is still unknown then, so the
/// limit is lower.
const STRANGER_HEADER_BYTES_MAX: u32 = 4 << 20;
/// An upper bound on the encoded size of a cluster spec: the addresses of chief, ps, workers and evaluators,
/// each with the bytes that encode its length.
const CLUSTER_BYTES_MAX: usize = 3 * TASKS_PER_JOB_MAX * (ADDRESS_BYTES_MAX + 3);

/// The limits on the frames that one end of a connection accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest size of a header, in bytes.
    pub header_bytes_max: u32,
    /// The largest size of a payload, in bytes.
    pub payload_bytes_max: u64,
}

impl Limits {
    /// The limits until the handshake is complete. No message of the handshake has a payload.
    pub const STRANGER: Self = Self { header_bytes_max: STRANGER_HEADER_BYTES_MAX, payload_bytes_max: 0 };
}

impl Default for Limits {
    /// Returns the limits after the handshake. A payload of 2 GiB is enough for all slices of a large shard.
    fn default() -> Self {
        Self { header_bytes_max: HEADER_BYTES_MAX, payload_bytes_max: 2 << 30 }
    }
}

const _: () = assert!(STRANGER_HEADER_BYTES_MAX <= HEADER_BYTES_MAX);
const _: () = assert!(CLUSTER_BYTES_MAX + 4096 <= STRANGER_HEADER_BYTES_MAX as usize);
