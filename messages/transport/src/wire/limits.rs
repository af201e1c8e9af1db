//! The limits on the sizes of frames, which are checked before any memory is allocated for a frame.

use pushpull_messages::cluster::{ADDRESS_BYTES_MAX, TASKS_PER_JOB_MAX};

/// The largest size of a header after the handshake, in bytes. This is enough for a large graph and its
/// placement.
pub const HEADER_BYTES_MAX: u32 = 64 << 20;
/// The largest size of the first header of a connection, in bytes, without the cluster spec of a large
/// cluster. The peer is still unknown then, so the limit is much lower.
const STRANGER_HEADER_BYTES_MAX: u32 = 64 << 10;
/// The largest number of payload segments in a frame after the handshake.
const SEGMENTS_MAX: u32 = 1 << 20;
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
    /// The largest number of payload segments.
    pub segments_max: u32,
}

impl Limits {
    /// The limits until the handshake is complete. No message of the handshake has a payload.
    pub const STRANGER: Self =
        Self { header_bytes_max: STRANGER_HEADER_BYTES_MAX, payload_bytes_max: 0, segments_max: 0 };

    /// Returns the limits on the first frame that a task receives whose own hello has a header of
    /// `hello_bytes` bytes. The hello of a member of the same cluster has about that size. The rest of the
    /// limit is for the hello of a task that was started with a cluster spec that is a little longer: it is
    /// refused, but with the reason.
    pub(crate) fn for_hello(hello_bytes: usize) -> Self {
        let hello_bytes = u32::try_from(hello_bytes).unwrap_or(HEADER_BYTES_MAX);
        let header_bytes_max = STRANGER_HEADER_BYTES_MAX.saturating_add(hello_bytes).min(HEADER_BYTES_MAX);
        Self { header_bytes_max, ..Self::STRANGER }
    }
}

impl Default for Limits {
    /// Returns the limits after the handshake. A payload of 2 GiB is enough for all slices of a large shard.
    fn default() -> Self {
        Self { header_bytes_max: HEADER_BYTES_MAX, payload_bytes_max: 2 << 30, segments_max: SEGMENTS_MAX }
    }
}

const _: () = assert!(STRANGER_HEADER_BYTES_MAX <= HEADER_BYTES_MAX);
const _: () = assert!(CLUSTER_BYTES_MAX + STRANGER_HEADER_BYTES_MAX as usize <= HEADER_BYTES_MAX as usize);
