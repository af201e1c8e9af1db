//! Divides the drain timeout into two parts: in the first, the workers finish their steps; in the second,
//! the chief makes the last save. Reads no clock.
//!
//! Wanted properties: (A) the two parts add up to the whole timeout; (B) the workers have three fifths of
//! the timeout, rounded down.

use std::time::Duration;

/// The two parts of the drain timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DrainShares {
    /// The time limit for the workers to finish their steps.
    pub workers: Duration,
    /// The time that is left for the last save.
    pub save: Duration,
}

impl DrainShares {
    /// Splits the drain timeout. The multiplication cannot overflow, because
    /// [`CheckpointConfig::validate`](super::CheckpointConfig::validate) has limited the timeout.
    pub(crate) fn of(drain_timeout: Duration) -> Self {
        let workers = drain_timeout * 3 / 5;
        Self { workers, save: drain_timeout - workers }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::config::DRAIN_TIMEOUT_MAX;
    use super::*;

    proptest! {
        /// Checks that the parts add up (A), and that the workers have three fifths (B).
        #[test]
        fn shares_add_up(nanos in 0..=DRAIN_TIMEOUT_MAX.as_nanos() as u64) {
            let timeout = Duration::from_nanos(nanos);
            let DrainShares { workers, save } = DrainShares::of(timeout);
            prop_assert_eq!(workers + save, timeout, "(A)");
            prop_assert_eq!(workers.as_nanos(), timeout.as_nanos() * 3 / 5, "(B)");
        }
    }
}
