//! Ends the training when a loss is not a number any more.

use crate::hook::{Asks, Hook};
use crate::moment::Moment;

/// Ends the training well when a worker reports a loss that is not finite. Without it such a job goes on as long as its gradients
/// are finite, or are dropped.
#[derive(Clone, Copy, Debug, Default)]
pub struct StopOnNan;

impl Hook for StopOnNan {
    fn progress(&mut self, moment: &Moment, asks: &mut Asks) {
        for (worker, report) in &moment.reports {
            if let Some(loss) = report.loss.filter(|loss| !loss.is_finite()) {
                asks.stop(format!("the loss of worker/{worker} is {loss} near step {}", moment.step()));
            }
        }
    }
}
