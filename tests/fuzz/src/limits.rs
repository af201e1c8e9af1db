//! What an input may cost. An input that costs more is a finding, as one that causes a panic.

use std::time::Duration;

/// What an input may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The processor time.
    pub time: Duration,
    /// All bytes that are allocated while the input is checked.
    pub allocated_bytes: usize,
}

impl Limits {
    /// Returns the limits for inputs of a few kilobytes that are decoded.
    pub const fn usual() -> Self {
        Self { time: Duration::from_millis(50), allocated_bytes: 64 << 20 }
    }
}
