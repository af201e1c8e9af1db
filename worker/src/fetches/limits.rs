//! The limits of what a hook fetches.

/// The maximum number of names that one hook may fetch.
pub const FETCH_NAMES_MAX: usize = 64;
/// The maximum size, in bytes, of the tensors that one hook fetches in a step.
pub const FETCH_BYTES_MAX: u64 = 64 << 20;
