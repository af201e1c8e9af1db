//! Times on the clock of one task, as numbers that messages can carry. Times of two tasks can be compared
//! only after their clocks have been aligned.

use std::time::Instant;

use super::time_source;

/// A time on a task's clock, or the difference of two such times, in microseconds.
pub type Micros = i64;

/// A clock of a task. It starts at 0 and never goes backwards.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
}

impl Clock {
    /// Starts a clock at time 0.
    pub fn start() -> Self {
        Self { started: time_source::now() }
    }

    /// Returns the current time.
    pub fn now(&self) -> Micros {
        self.at(time_source::now())
    }

    /// Returns the time on this clock at `moment`; negative if `moment` is before the start.
    pub fn at(&self, moment: Instant) -> Micros {
        let micros = |later: Instant, earlier: Instant| {
            Micros::try_from(later.saturating_duration_since(earlier).as_micros()).unwrap_or(Micros::MAX)
        };
        micros(moment, self.started) - micros(self.started, moment)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_negative_before_the_start() {
        let clock = Clock::start();
        assert_eq!(clock.at(clock.started), 0);
        assert_eq!(clock.at(clock.started + Duration::from_micros(1500)), 1500);
        let before =
            clock.started.checked_sub(Duration::from_millis(2)).expect("the machine is up for longer");
        assert_eq!(clock.at(before), -2000);
        let (one, other) = (clock.now(), clock.now());
        assert!(0 <= one && one <= other);
    }
}
