//! On which steps the norm of the gradients is measured: it takes a pass over all of them, and keeps their push from
//! beginning early. Knows no gradient.
//!
//! Wanted properties: (A) the first step is measured; (B) between two that are there are so many steps, and so long a time.

use std::time::{Duration, Instant};

use pushpull_messages::id::LocalStep;

/// Between two steps that are measured, so that those that take long are slowed down by no more than a share.
const STEPS: u64 = 16;

/// When it was measured last.
#[derive(Debug)]
pub(crate) struct Gauge {
    every: Duration,
    last: Option<(LocalStep, Instant)>,
}

impl Gauge {
    /// About so often.
    pub(crate) const fn new(every: Duration) -> Self {
        Self { every, last: None }
    }

    /// Whether to measure that step. One that is due counts as measured.
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
        /// (A) and (B).
        #[test]
        fn neither_many_short_steps_nor_few_long_ones_are_measured_often(took in prop::collection::vec(0u64..500, 1..200)) {
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
