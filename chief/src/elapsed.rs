//! Times on the chief's clock, as durations since the start of the chief.

use std::time::{Duration, Instant};

use pushpull_messages::observe::{self, Clock};

/// Returns the time since the chief was started.
pub(crate) fn elapsed(clock: &Clock) -> Duration {
    elapsed_at(clock, observe::now())
}

/// Returns the time from the chief's start to `instant`, or zero if `instant` is earlier.
pub(crate) fn elapsed_at(clock: &Clock, instant: Instant) -> Duration {
    Duration::from_micros(u64::try_from(clock.at(instant)).unwrap_or(0))
}
