//! What may be hooked into a worker's training: called before and after each of its steps. Knows no task and no
//! connection.

use std::sync::Arc;

use pushpull_messages::id::{GlobalStep, LocalStep, TaskId};
use pushpull_messages::input::ColumnSpec;
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::Verdict;

use crate::plots::Plots;
use crate::values::Values;
use pushpull_input::Batch;

/// Something that goes along with one worker's training. Every call is made between two steps, which wait for it.
///
/// An error ends the worker, and so the job, with its words as the reason.
pub trait Hook: Send {
    /// The training begins.
    ///
    /// # Errors
    /// Whatever shall keep it from that.
    fn begin(&mut self, start: &Start<'_>) -> Result<(), HookError> {
        let _ = start;
        Ok(())
    }

    /// A step begins.
    ///
    /// # Errors
    /// Whatever shall end the worker.
    fn before_step(&mut self, step: &StepContext<'_>) -> Result<(), HookError> {
        let _ = step;
        Ok(())
    }

    /// A step has been taken, and its gradients have been pushed, or dropped. What is plotted travels with the worker's next
    /// report.
    ///
    /// # Errors
    /// Whatever shall end the worker.
    fn after_step(&mut self, step: &StepInfo<'_>, plots: &Plots) -> Result<(), HookError> {
        let _ = (step, plots);
        Ok(())
    }
}

/// Makes a hook, one for each worker.
pub type MakeHook = Arc<dyn Fn() -> Box<dyn Hook> + Send + Sync>;

/// What a worker trains.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// The job, with its input as this host has it.
    pub job: &'a JobSpec,
    /// Which worker it is.
    pub task: TaskId,
    /// What every batch has, in the order of its columns.
    pub columns: &'a [ColumnSpec],
}

/// A step that is about to be taken.
#[derive(Clone, Copy, Debug)]
pub struct StepContext<'a> {
    /// Steps of this worker before it.
    pub local_step: LocalStep,
    /// The job's step that its values are of, on the shard that is furthest.
    pub global_step: GlobalStep,
    /// What it is computed from.
    pub batch: &'a Batch,
    /// The variables that it is computed from.
    pub values: &'a Values,
}

/// A step that has been taken.
#[derive(Clone, Copy, Debug)]
pub struct StepInfo<'a> {
    /// Steps of this worker before it.
    pub local_step: LocalStep,
    /// The job's step after it, on the shard that is furthest.
    pub global_step: GlobalStep,
    /// The mean over the batch.
    pub loss: f32,
    /// What it was computed from.
    pub batch: &'a Batch,
    /// The variables that came back: those of the next step.
    pub values: &'a Values,
    /// The euclidean norm of its gradients before they were clipped by it, where it was measured: about as often as the worker
    /// reports.
    pub gradient_norm: Option<f32>,
    /// From the computation's beginning until the next values were here, in seconds.
    pub seconds: f64,
    /// What became of the gradients on each shard; none where they were dropped.
    pub verdicts: &'a [Verdict],
}

/// Why a hook ends the worker.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HookError(String);

impl HookError {
    /// In these words.
    pub fn new(reason: impl std::fmt::Display) -> Self {
        Self(reason.to_string())
    }
}
