//! Ends the training soon after a given step. To end at exactly one step, set the job's last step instead.

use pushpull_messages::id::GlobalStep;

use crate::hook::{Hook, HookContext};
use crate::monitor::TrainingSnapshot;

/// A hook that ends the training successfully when this number of updates has been reached. The training
/// ends about a second later, and therefore usually at a later step.
#[derive(Clone, Copy, Debug)]
pub struct StopAtStep(pub GlobalStep);

impl Hook for StopAtStep {
    fn progress(&mut self, snapshot: &TrainingSnapshot, context: &mut HookContext) {
        if snapshot.step() >= self.0 {
            context.stop(format!("step {} was reached", self.0));
        }
    }
}
