//! The limits on the size of a frame, and on the time in which it must arrive. The size is checked before any
//! memory is allocated for the frame.

use std::time::Duration;

use pushpull_messages::cluster::{ADDRESS_BYTES_MAX, JOBS_MAX, TASKS_MAX};
use pushpull_messages::id::JOB_NAME_BYTES_MAX;

/// The largest size of a header after the handshake, in bytes. This is enough for a large graph and its
/// placement.
pub const HEADER_BYTES_MAX: u32 = 64 << 20;
/// The largest size, in bytes, of the first header of a connection, not counting the cluster spec. The limit
/// is much lower than [`HEADER_BYTES_MAX`], because the peer is still unknown.
const STRANGER_HEADER_BYTES_MAX: u32 = 64 << 10;
/// The largest number of payload segments in a frame after the handshake.
const SEGMENTS_MAX: u32 = 1 << 20;
/// An upper bound on the encoded size of a cluster spec: all names and addresses, each with the bytes that
/// encode its length or its number of tasks.
const CLUSTER_BYTES_MAX: usize = TASKS_MAX * (ADDRESS_BYTES_MAX + 3) + JOBS_MAX * (JOB_NAME_BYTES_MAX + 8);

/// The limits on the frames that one end of a connection accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest size of a header, in bytes.
    pub header_bytes_max: u32,
    /// The largest size of a payload, in bytes.
    pub payload_bytes_max: u64,
    /// The largest number of payload segments.
    pub segments_max: u32,
    /// The time that every frame is given to arrive, in milliseconds, however slow its sender is. A sender
    /// may need this time: it may send the first part of a gradient before it has computed the rest.
    pub frame_ms: u64,
    /// The lowest rate of a frame: each time this number of bytes has arrived, the frame is given one more
    /// second.
    pub frame_bytes_per_second_min: u64,
}

impl Limits {
    /// The limits until the handshake is complete. No message of the handshake has a payload.
    pub const STRANGER: Self =
        Self { header_bytes_max: STRANGER_HEADER_BYTES_MAX, payload_bytes_max: 0, segments_max: 0, ..USUAL };

    /// Returns the limits on the first frame of a connection. `hello_bytes` is the size of this task's own
    /// hello in bytes; the hello of another member of the cluster has about that size. The limit on the
    /// header is 64 KiB higher, so that a hello with a slightly longer cluster spec can be decoded and then
    /// refused with the reason.
    pub(crate) fn for_hello(hello_bytes: usize) -> Self {
        let hello_bytes = u32::try_from(hello_bytes).unwrap_or(HEADER_BYTES_MAX);
        let header_bytes_max = STRANGER_HEADER_BYTES_MAX.saturating_add(hello_bytes).min(HEADER_BYTES_MAX);
        Self { header_bytes_max, ..Self::STRANGER }
    }

    /// Returns the time limit for the next byte of a frame of which `received` bytes have arrived. The time
    /// counts from the beginning of the frame.
    ///
    /// Wanted properties: (A) a frame that always arrives at the lowest rate or faster is in time; (B) a
    /// slower frame is late as soon as it is [`frame_ms`](Self::frame_ms) behind that rate; (C) each byte
    /// that arrives extends the time.
    pub fn time_for(&self, received: u64) -> Duration {
        let rate = u128::from(self.frame_bytes_per_second_min.max(1));
        let micros = u128::from(received) * 1_000_000 / rate;
        let micros = u64::try_from(micros).unwrap_or(u64::MAX);
        Duration::from_millis(self.frame_ms).saturating_add(Duration::from_micros(micros))
    }
}

impl Default for Limits {
    /// Returns the limits that apply after the handshake. A payload of 2 GiB is enough for all slices of a
    /// large shard.
    fn default() -> Self {
        USUAL
    }
}

/// The limits after the handshake.
const USUAL: Limits = Limits {
    header_bytes_max: HEADER_BYTES_MAX,
    payload_bytes_max: 2 << 30,
    segments_max: SEGMENTS_MAX,
    frame_ms: 60_000,
    frame_bytes_per_second_min: 1 << 20,
};

const _: () = assert!(STRANGER_HEADER_BYTES_MAX <= HEADER_BYTES_MAX);
const _: () = assert!(CLUSTER_BYTES_MAX + STRANGER_HEADER_BYTES_MAX as usize <= HEADER_BYTES_MAX as usize);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Checks (A) to (C) for a frame that arrives at one rate: after each piece, the next one is in time
        /// exactly if the rate is high enough or the time of all frames is not over.
        #[test]
        fn a_frame_must_keep_its_pace(
            frame_ms in 0u64..1000,
            least in 1u64..1 << 30,
            rate in 1u64..1 << 31,
            received in 0u64..1 << 40,
            more in 1u64..1 << 20,
        ) {
            let limits = Limits { frame_ms, frame_bytes_per_second_min: least, ..Limits::default() };
            let base = Duration::from_millis(frame_ms);
            let next_at = Duration::from_secs_f64((received + 1) as f64 / rate as f64);
            let slack = Duration::from_secs_f64(1.0 / rate as f64) + Duration::from_micros(2);
            let time = limits.time_for(received);
            if rate >= least {
                prop_assert!(next_at <= time + slack, "(A) {next_at:?} {time:?}");
            }
            prop_assert!(time >= base, "(B)");
            prop_assert!(time <= base + Duration::from_secs_f64(received as f64 / least as f64) + slack, "(B)");
            prop_assert!(limits.time_for(received + more) >= time, "(C)");
        }
    }

    #[test]
    fn the_largest_frame_has_a_time() {
        let limits = Limits::default();
        assert_eq!(limits.time_for(0), Duration::from_secs(60));
        assert_eq!(limits.time_for(limits.payload_bytes_max), Duration::from_secs(60 + 2048));
        let limits = Limits { frame_ms: u64::MAX, frame_bytes_per_second_min: 0, ..limits };
        assert!(limits.time_for(u64::MAX) > Duration::from_secs(1 << 40));
    }
}
