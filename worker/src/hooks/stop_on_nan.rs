//! A hook that ends the worker when its loss is not finite. This module must not depend on gradients.

use super::hook::{Hook, HookError, StepInfo};
use crate::telemetry::Plots;

/// A hook that ends the worker and the job with an error at the first step whose loss is not finite. Without
/// this hook, the job continues if it drops the gradients of such a step, or if the gradients are finite
/// although the loss is not.
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
