//! Decides when something regular is due: after a number of steps or a time, whichever comes first. Knows no
//! clock.
//!
//! Wanted properties: (A) the first call is due; (B) a later call is due exactly when that many steps, or
//! that much time, have passed since the last call that was.

use std::time::Duration;

/// The cadence of something regular, and when it was last due.
#[derive(Clone, Debug)]
pub(crate) struct Cadence {
    steps: Option<u64>,
    time: Option<Duration>,
    last: Option<(u64, Duration)>,
}

impl Cadence {
    /// Returns a cadence of `steps` steps or `time`; without both, only the first call is due.
    pub(crate) const fn new(steps: Option<u64>, time: Option<Duration>) -> Self {
        Self { steps, time, last: None }
    }

    /// Returns whether it is due at this step and time. What is due counts as done.
    pub(crate) fn is_due(&mut self, step: u64, at: Duration) -> bool {
        let due = self.last.is_none_or(|(last_step, last_at)| {
            self.steps.is_some_and(|steps| step.saturating_sub(last_step) >= steps)
                || self.time.is_some_and(|time| at.saturating_sub(last_at) >= time)
        });
        if due {
            self.last = Some((step, at));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// (A) and (B)
        #[test]
        fn the_first_call_is_due_and_then_every_interval(
            moments in prop::collection::vec((0u64..20, 0u64..20), 1..50),
            steps in prop::option::of(1u64..30),
            seconds in prop::option::of(1u64..30),
        ) {
            let mut pace = Cadence::new(steps, seconds.map(Duration::from_secs));
            let (mut step, mut at, mut last) = (0, 0, None);
            for (more_steps, more_time) in moments {
                (step, at) = (step + more_steps, at + more_time);
                let wanted = match last {
                    None => true,
                    Some((last_step, last_at)) => {
                        steps.is_some_and(|steps| step - last_step >= steps)
                            || seconds.is_some_and(|seconds| at - last_at >= seconds)
                    }
                };
                prop_assert_eq!(pace.is_due(step, Duration::from_secs(at)), wanted);
                if wanted {
                    last = Some((step, at));
                }
            }
        }
    }
}
