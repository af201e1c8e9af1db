//! Ends the worker when its loss is not a number any more.

use crate::hook::{Hook, HookError, StepInfo};
use crate::plots::Plots;

/// Ends the worker, and so the job, with an error at the first step whose loss is not finite, where the job drops such gradients, or
/// they are finite all the same.
#[derive(Clone, Copy, Debug, Default)]
pub struct StopOnNan;

impl Hook for StopOnNan {
    fn after_step(&mut self, step: &StepInfo<'_>, _: &Plots) -> Result<(), HookError> {
        if step.loss.is_finite() {
            return Ok(());
        }
        Err(HookError::new(format!("the loss is {} at step {} of this worker", step.loss, step.local_step)))
    }
}
