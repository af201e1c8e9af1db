//! Ends the training near a step. The job's own last step is exact; this is for jobs that run already.

use pushpull_messages::id::GlobalStep;

use crate::hook::{Hook, HookContext};
use crate::monitor::TrainingSnapshot;

/// A hook that ends the training well when this many updates are seen: within about a second, and not exactly
/// there.
#[derive(Clone, Copy, Debug)]
pub struct StopAtStep(pub GlobalStep);

impl Hook for StopAtStep {
    fn progress(&mut self, snapshot: &TrainingSnapshot, context: &mut HookContext) {
        if snapshot.step() >= self.0 {
            context.stop(format!("step {} is reached", self.0));
        }
    }
}
