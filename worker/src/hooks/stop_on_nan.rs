//! A hook that ends the worker when its loss is not finite. Independent of gradients.

use super::hook::{Hook, HookError, StepInfo};
use crate::telemetry::Plots;

/// A hook that ends the worker with an error, and with it the job, at the first step whose loss is not
/// finite. It is useful if the job drops gradients that are not finite, or if gradients are finite although
/// the loss is not.
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
