//! Logs the speed of the job.

use std::time::Duration;

use super::cadence::Cadence;
use crate::hook::{Hook, HookContext};
use crate::monitor::TrainingSnapshot;

/// A hook that logs the updates per second each time a configured number of updates has been applied or a
/// configured interval has passed, whichever comes first.
#[derive(Clone, Debug)]
pub struct StepCounter {
    cadence: Cadence,
    /// The step and the time of the last log line.
    last: Option<(u64, Duration)>,
}

impl StepCounter {
    /// Creates a counter that logs each time `every_steps` steps have been taken or the time `every` has
    /// passed, whichever comes first. If both arguments are `None`, it never logs.
    pub const fn new(every_steps: Option<u64>, every: Option<Duration>) -> Self {
        Self { cadence: Cadence::new(every_steps, every), last: None }
    }
}

impl Hook for StepCounter {
    fn progress(&mut self, snapshot: &TrainingSnapshot, _: &mut HookContext) {
        let step = snapshot.step().0;
        if !self.cadence.is_due(step, snapshot.at) {
            return;
        }
        if let Some((last_step, last_at)) = self.last.replace((step, snapshot.at)) {
            let (steps, time) = (step.saturating_sub(last_step), snapshot.at.saturating_sub(last_at));
            if !time.is_zero() {
                tracing::info!("step {step}: {:.2} steps/s", steps as f64 / time.as_secs_f64());
            }
        }
    }
}
