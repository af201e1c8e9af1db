//! How long updates take. Whoever wants to know brings the clock: there is none here.
//!
//! Wanted properties: (A) every update counts once; (B) with it the time that its gradients took to be added up as they came.

use std::time::Duration;

use pushpull_messages::observe::TimeHistogram;

/// Carries something out, once, and tells how long that took.
pub type Measure = fn(&mut dyn FnMut()) -> Duration;

/// The updates of one shard.
#[derive(Debug)]
pub(super) struct Updates {
    pub measure: Measure,
    /// What the next one has taken already.
    adding: Duration,
    times: TimeHistogram,
}

impl Default for Updates {
    /// Without a clock: no time goes by.
    fn default() -> Self {
        let measure: Measure = |work| {
            work();
            Duration::ZERO
        };
        Self { measure, adding: Duration::ZERO, times: TimeHistogram::default() }
    }
}

impl Updates {
    /// How long they took.
    pub(super) const fn times(&self) -> TimeHistogram {
        self.times
    }

    /// A gradient is added to those that wait.
    pub(super) fn add(&mut self, add: impl FnOnce()) {
        let mut add = Some(add);
        self.adding += (self.measure)(&mut || add.take().into_iter().for_each(|add| add()));
    }

    /// An update is made, unless `make` says that there was nothing to make it of.
    pub(super) fn make(&mut self, make: impl FnOnce() -> bool) {
        let (mut make, mut made) = (Some(make), false);
        let took = (self.measure)(&mut || made = make.take().is_some_and(|make| make()));
        if made {
            self.times.record(took + std::mem::take(&mut self.adding));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// (A) and (B).
        #[test]
        fn an_update_takes_what_its_gradients_and_itself_take(turns in prop::collection::vec(0u8..3, 0..50)) {
            let measure: Measure = |work| {
                work();
                Duration::from_micros(7)
            };
            let mut updates = Updates { measure, ..Updates::default() };
            let mut expected = TimeHistogram::default();
            let mut adding = 0;
            for turn in turns {
                let mut calls = 0;
                match turn {
                    0 => {
                        updates.add(|| calls += 1);
                        adding += 1;
                    }
                    made => {
                        updates.make(|| {
                            calls += 1;
                            made == 1
                        });
                        if made == 1 {
                            expected.record(Duration::from_micros(7 * (adding + 1)));
                            adding = 0;
                        }
                    }
                }
                prop_assert_eq!(calls, 1);
                prop_assert_eq!(updates.times(), expected);
            }
        }
    }
}
