//! Decides when a regular action is due: after a number of steps or after an interval, whichever ends first.
//! Reads no clock.
//!
//! Wanted properties: (A) at the first call the action is due; (B) at a later call it is due if and only if
//! the given number of steps, or the given interval, has passed since the action was last due.

use std::time::Duration;

/// The cadence of a regular action, and when the action was last due.
#[derive(Clone, Debug)]
pub(crate) struct Cadence {
    steps: Option<u64>,
    time: Option<Duration>,
    last: Option<(u64, Duration)>,
}

impl Cadence {
    /// Returns the cadence of an action that is due again after `steps` steps or after the interval `time`,
    /// whichever ends first. If both are `None`, the action is due only at the first call.
    pub(crate) const fn new(steps: Option<u64>, time: Option<Duration>) -> Self {
        Self { steps, time, last: None }
    }

    /// Returns whether the action is due at this step and time. If the action is due, records it as done.
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
