//! Measures how long a shard's updates take, with a clock that the caller supplies.
//!
//! Wanted properties: (A) every update counts once; (B) the time of an update includes the time of
//! the work before it, such as aggregating its gradients.

use std::time::Duration;

use pushpull_messages::observe::TimeHistogram;

/// A function that calls its argument once and returns how long the call took.
pub type Measure = fn(&mut dyn FnMut()) -> Duration;

/// A timer for the updates of one shard.
#[derive(Debug)]
pub(super) struct UpdateTimer {
    pub measure: Measure,
    /// The time spent so far on aggregating gradients for the next update.
    aggregating: Duration,
    times: TimeHistogram,
}

impl Default for UpdateTimer {
    /// Returns a timer without a clock. All its times are zero.
    fn default() -> Self {
        let measure: Measure = |work| {
            work();
            Duration::ZERO
        };
        Self { measure, aggregating: Duration::ZERO, times: TimeHistogram::default() }
    }
}

impl UpdateTimer {
    /// Returns the times that the updates took.
    pub(super) const fn times(&self) -> TimeHistogram {
        self.times
    }

    /// Measures the aggregation of a gradient; its time counts as part of the next update.
    pub(super) fn aggregate(&mut self, aggregate: impl FnOnce()) {
        let mut aggregate = Some(aggregate);
        self.aggregating +=
            (self.measure)(&mut || aggregate.take().into_iter().for_each(|aggregate| aggregate()));
    }

    /// Adds the time of work on the next update that was measured elsewhere.
    pub(super) fn add(&mut self, took: Duration) {
        self.aggregating += took;
    }

    /// Measures an update. Its time counts only if `update` returns true.
    pub(super) fn update(&mut self, update: impl FnOnce() -> bool) {
        let (mut update, mut updated) = (Some(update), false);
        let took = (self.measure)(&mut || updated = update.take().is_some_and(|update| update()));
        if updated {
            self.times.record(took + std::mem::take(&mut self.aggregating));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Checks that every update counts once (A), together with the time of its aggregation (B). On the
        /// clock of the test, every call takes 7 µs.
        #[test]
        fn an_update_includes_the_time_of_its_aggregation(calls in prop::collection::vec(0u8..3, 0..50)) {
            let measure: Measure = |work| {
                work();
                Duration::from_micros(7)
            };
            let mut timer = UpdateTimer { measure, ..UpdateTimer::default() };
            let mut expected = TimeHistogram::default();
            let mut aggregated = 0;
            for call in calls {
                let mut called = 0;
                match call {
                    0 => {
                        timer.aggregate(|| called += 1);
                        aggregated += 1;
                    }
                    made => {
                        timer.update(|| {
                            called += 1;
                            made == 1
                        });
                        if made == 1 {
                            expected.record(Duration::from_micros(7 * (aggregated + 1)));
                            aggregated = 0;
                        }
                    }
                }
                prop_assert_eq!(called, 1);
                prop_assert_eq!(timer.times(), expected);
            }
        }
    }
}
