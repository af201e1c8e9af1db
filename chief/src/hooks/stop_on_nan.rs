//! Ends the training when a loss is not a number any more.

use crate::hook::{Hook, HookContext};
use crate::monitor::TrainingSnapshot;

/// Ends the training well when a worker reports a loss that is not finite. Without it such a job goes on as
/// long as its gradients are finite, or are dropped.
#[derive(Clone, Copy, Debug, Default)]
pub struct StopOnNan;

impl Hook for StopOnNan {
    fn progress(&mut self, snapshot: &TrainingSnapshot, context: &mut HookContext) {
        for (worker, report) in &snapshot.reports {
            if let Some(loss) = report.loss.filter(|loss| !loss.is_finite()) {
                context.stop(format!("the loss of worker/{worker} is {loss} near step {}", snapshot.step()));
            }
        }
    }
}
