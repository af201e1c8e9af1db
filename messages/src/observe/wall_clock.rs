//! The time of day of one task's host. It may be wrong by years, and it may jump at any time in both
//! directions. The time of day is therefore only shown to people and used in names that must differ. No
//! decision may compare the times of two tasks, or two times of one task. Durations are measured with a
//! monotonic clock.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// A clock that returns the time of day of a task's host.
#[derive(Clone)]
pub struct WallClock(Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl WallClock {
    /// Returns a clock that calls `now` for each time, for example in a simulation.
    pub fn new(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// Returns the time.
    pub fn now(&self) -> SystemTime {
        (self.0)()
    }

    /// Returns the time in milliseconds since 1970; 0 before 1970.
    pub fn unix_ms(&self) -> u64 {
        let since = self.now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the time in microseconds since 1970; 0 before 1970.
    pub fn unix_us(&self) -> u64 {
        let since = self.now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}

/// The clock of this process's host.
impl Default for WallClock {
    fn default() -> Self {
        Self::new(|| UNIX_EPOCH + super::unix_time())
    }
}

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WallClock")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_clock_before_1970_shows_zero() {
        let long = Duration::from_secs(3600);
        let early = WallClock::new(move || UNIX_EPOCH - long);
        assert_eq!((early.unix_ms(), early.unix_us()), (0, 0));
        let late = WallClock::new(move || UNIX_EPOCH + long);
        assert_eq!((late.unix_ms(), late.unix_us()), (3_600_000, 3_600_000_000));
    }
}
