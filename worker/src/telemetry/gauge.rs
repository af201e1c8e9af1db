//! Decides at which steps the gradient norm is measured. Measurements are rare, because each one takes a
//! pass over all gradients and delays the push until all gradients are computed. This module must not depend
//! on gradients.
//!
//! Wanted properties: (A) the first step is measured; (B) two measured steps are at least [`STEPS`] steps
//! and at least the configured time apart.

use std::time::{Duration, Instant};

use pushpull_messages::id::LocalStep;

/// The minimum number of steps from one measured step to the next. It limits the cost of measurements in a
/// job with short steps.
const STEPS: u64 = 16;

/// A gauge, which decides at which steps the gradient norm is measured.
#[derive(Debug)]
pub(crate) struct Gauge {
    every: Duration,
    last: Option<(LocalStep, Instant)>,
}

impl Gauge {
    /// Creates a gauge. `every` is the minimum time between two measurements.
    pub(crate) const fn new(every: Duration) -> Self {
        Self { every, last: None }
    }

    /// Returns true if the norm should be measured at `step`, and if so, records `step` as measured.
    pub(crate) fn is_due(&mut self, step: LocalStep, now: Instant) -> bool {
        let due = self.last.is_none_or(|(last, at)| {
            step.0.saturating_sub(last.0) >= STEPS && now.saturating_duration_since(at) >= self.every
        });
        if due {
            self.last = Some((step, now));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Checks that the first step is measured (A), and that every later step is measured as soon as the
        /// minimum distance to the last measured step allows it (B).
        #[test]
        fn steps_are_measured_rarely(took in prop::collection::vec(0u64..500, 1..200)) {
            let every = Duration::from_secs(1);
            let (mut gauge, mut now) = (Gauge::new(every), Instant::now());
            let mut measured: Vec<(u64, Instant)> = Vec::new();
            for (step, took) in took.into_iter().enumerate() {
                now += Duration::from_millis(took);
                let step = step as u64;
                let wanted = measured.last().is_none_or(|&(last, at)| step - last >= STEPS && now - at >= every);
                prop_assert_eq!(gauge.is_due(LocalStep(step), now), wanted);
                if wanted {
                    measured.push((step, now));
                }
            }
            prop_assert_eq!(measured[0].0, 0);
        }
    }
}
