//! Ends the training near a step. The job's own last step is exact; this hook is for jobs that are already
//! running.

use pushpull_messages::id::GlobalStep;

use crate::hook::{Hook, HookContext};
use crate::monitor::TrainingSnapshot;

/// A hook that ends the training successfully when this number of updates has been reached. The end comes
/// within about a second, and not exactly at that step.
#[derive(Clone, Copy, Debug)]
pub struct StopAtStep(pub GlobalStep);

impl Hook for StopAtStep {
    fn progress(&mut self, snapshot: &TrainingSnapshot, context: &mut HookContext) {
        if snapshot.step() >= self.0 {
            context.stop(format!("step {} is reached", self.0));
        }
    }
}
