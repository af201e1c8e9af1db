//! The interface of hooks, which are called before and after each step of a worker. Knows no task and no
//! connection.

use std::sync::Arc;

use pushpull_input::Batch;
use pushpull_messages::id::{GlobalStep, LocalStep, TaskId};
use pushpull_messages::input::ColumnSpec;
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::Verdict;

use crate::client::Values;
use crate::telemetry::Plots;

/// A hook into one worker's training. Every call happens between two steps, which wait for it.
///
/// An error ends the worker, and with it the job; its text is the reason.
pub trait Hook: Send {
    /// Is called before the first step.
    ///
    /// # Errors
    /// Any error keeps the training from beginning.
    fn begin(&mut self, start: &Start<'_>) -> Result<(), HookError> {
        let _ = start;
        Ok(())
    }

    /// Is called before each step.
    ///
    /// # Errors
    /// Any error ends the worker.
    fn before_step(&mut self, step: &StepContext<'_>) -> Result<(), HookError> {
        let _ = step;
        Ok(())
    }

    /// Is called after each step, when its gradients were pushed or dropped. Plotted summaries travel with
    /// the worker's next report.
    ///
    /// # Errors
    /// Any error ends the worker.
    fn after_step(&mut self, step: &StepInfo<'_>, plots: &Plots) -> Result<(), HookError> {
        let _ = (step, plots);
        Ok(())
    }
}

/// Makes the hook of one worker.
pub type MakeHook = Arc<dyn Fn() -> Box<dyn Hook> + Send + Sync>;

/// The training that begins.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// The job, with its input as this host has it.
    pub job: &'a JobSpec,
    /// The worker.
    pub task: TaskId,
    /// The columns of every batch, in order.
    pub columns: &'a [ColumnSpec],
}

/// A step that is about to begin.
#[derive(Clone, Copy, Debug)]
pub struct StepContext<'a> {
    /// The steps that this worker has taken before.
    pub local_step: LocalStep,
    /// The greatest version of a shard in the values.
    pub global_step: GlobalStep,
    /// The batch of the step.
    pub batch: &'a Batch,
    /// The values that the step is computed from.
    pub values: &'a Values,
}

/// A step that has been taken.
#[derive(Clone, Copy, Debug)]
pub struct StepInfo<'a> {
    /// The steps that this worker has taken before.
    pub local_step: LocalStep,
    /// The greatest version of a shard after the step.
    pub global_step: GlobalStep,
    /// The mean loss over the batch.
    pub loss: f32,
    /// The batch of the step.
    pub batch: &'a Batch,
    /// The values that were pulled for the next step.
    pub values: &'a Values,
    /// The Euclidean norm of the gradients before they were clipped by it. It is measured about as often as
    /// the worker reports, and `None` in other steps.
    pub gradient_norm: Option<f32>,
    /// The time from the beginning of the computation until the next values arrived, in seconds.
    pub seconds: f64,
    /// The verdict of each shard on the gradients; empty if they were dropped.
    pub verdicts: &'a [Verdict],
}

/// The error with which a hook ends the worker.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HookError(String);

impl HookError {
    /// Creates an error with this text.
    pub fn new(reason: impl std::fmt::Display) -> Self {
        Self(reason.to_string())
    }
}
