//! A hook that logs the steps of one worker. This module must not depend on jobs.

use super::hook::{Hook, HookError, StepInfo};
use crate::telemetry::Plots;

/// A hook that logs once every `steps` steps of the worker: the loss, the time and, if it was measured, the
/// norm of the gradients.
#[derive(Clone, Copy, Debug)]
pub struct LogEvery {
    steps: u64,
}

impl LogEvery {
    /// Creates a hook that logs every `steps` steps; 0 has the same effect as 1.
    pub const fn steps(steps: u64) -> Self {
        Self { steps: if steps == 0 { 1 } else { steps } }
    }
}

impl Hook for LogEvery {
    fn after_step(&mut self, step: &StepInfo<'_>, _: &Plots) -> Result<(), HookError> {
        if step.local_step.0.is_multiple_of(self.steps) {
            let StepInfo { local_step, global_step, loss, seconds, .. } = step;
            let ms = seconds * 1e3;
            let norm = step.gradient_norm.map_or(String::new(), |norm| format!(", gradient norm {norm:.4}"));
            tracing::info!(
                "step {local_step} of this worker, {global_step} of the job: loss {loss:.4}, {ms:.2} ms{norm}"
            );
        }
        Ok(())
    }
}
