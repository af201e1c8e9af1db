//! Ends the training when a loss is no longer finite.

use crate::hook::{Hook, HookContext};
use crate::monitor::TrainingSnapshot;

/// A hook that ends the training successfully when a worker reports a loss that is not finite. Without the
/// hook, the job continues after such a loss if the gradients are finite, or if the job drops gradients that
/// are not finite.
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
