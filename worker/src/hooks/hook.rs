//! The interface of hooks, which are called before, during and after each step of a worker. This module must
//! not depend on tasks or connections.

use std::sync::Arc;

use pushpull_input::Batch;
use pushpull_messages::id::{GlobalStep, LocalStep, TaskId};
use pushpull_messages::input::ColumnSpec;
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::{Evaluation, Verdict};

use super::step_gradients::StepGradients;
use crate::client::Values;
use crate::fetches::{FetchConfig, FetchedTensor};
use crate::telemetry::Plots;

/// A user-defined extension of one worker's training. The worker calls its hooks before, during and after
/// each step, and waits until each call returns.
///
/// If a call returns an error, the worker and the job end, and the text of the error is reported as the
/// reason.
pub trait Hook: Send {
    /// Returns the tensors that the worker fetches for the hook, if any. Called once, before
    /// [`begin`](Self::begin). If any of the names is not in the graph, the worker ends before its first
    /// step.
    fn fetches(&self) -> Option<FetchConfig> {
        None
    }

    /// Runs before the first step.
    ///
    /// # Errors
    /// Any error ends the worker before its first step.
    fn begin(&mut self, start: &Start<'_>) -> Result<(), HookError> {
        let _ = start;
        Ok(())
    }

    /// Runs before each step. If the job has a pipeline, the steps before it may not have ended.
    ///
    /// # Errors
    /// Any error ends the worker.
    fn before_step(&mut self, step: &StepContext<'_>) -> Result<(), HookError> {
        let _ = step;
        Ok(())
    }

    /// Runs after each step at which the hook's tensors were fetched, before
    /// [`after_step`](Self::after_step). A step whose gradients were dropped is taken again, and its tensors
    /// are fetched again.
    ///
    /// # Errors
    /// Any error ends the worker.
    fn fetched(&mut self, fetched: &Fetched<'_>, plots: &Plots) -> Result<(), HookError> {
        let _ = (fetched, plots);
        Ok(())
    }

    /// Returns true if the worker must call [`change_gradients`](Self::change_gradients). If so, the worker
    /// computes all gradients of a step before it pushes any of them. If not, the worker may begin the push
    /// during the computation. Called once, after [`begin`](Self::begin).
    fn changes_gradients(&self) -> bool {
        false
    }

    /// Changes the gradients of a step before they are checked, clipped and pushed. Called once per step,
    /// even if the step has several batches; each hook gets the gradients as the hooks before it have left
    /// them. If the worker then drops the gradients because they are not finite, it takes the step again,
    /// and calls this method again.
    ///
    /// # Errors
    /// Any error ends the worker.
    fn change_gradients(&mut self, gradients: &mut StepGradients<'_>) -> Result<(), HookError> {
        let _ = gradients;
        Ok(())
    }

    /// Runs after each step, when every shard has answered the push of its gradients, or when they were
    /// dropped. The steps end in their order. If the job has a pipeline, the worker may have begun later
    /// steps meanwhile. Summaries given to `plots` are sent with the worker's next report.
    ///
    /// # Errors
    /// Any error ends the worker.
    fn after_step(&mut self, step: &StepInfo<'_>, plots: &Plots) -> Result<(), HookError> {
        let _ = (step, plots);
        Ok(())
    }

    /// Runs on the worker that evaluates, after each evaluation that is made while the job trains. The
    /// worker has taken further steps since the values were read. The evaluation at the end of the job is
    /// not passed to hooks of workers.
    ///
    /// # Errors
    /// Any error ends the worker.
    fn evaluated(&mut self, info: &EvaluationInfo<'_>) -> Result<(), HookError> {
        let _ = info;
        Ok(())
    }
}

/// A function that creates the hook of one worker. It is called again if the worker begins again because its
/// job has rolled back to a checkpoint.
pub type MakeHook = Arc<dyn Fn() -> Box<dyn Hook> + Send + Sync>;

/// The information that a hook gets before the first step.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// The job. The paths of its input are paths on this host.
    pub job: &'a JobSpec,
    /// The worker that the hook belongs to.
    pub task: TaskId,
    /// The specs of the columns of every batch, in order.
    pub columns: &'a [ColumnSpec],
}

/// The information that a hook gets about a step that is about to begin.
#[derive(Clone, Copy, Debug)]
pub struct StepContext<'a> {
    /// The number of steps that the worker has taken before this step.
    pub local_step: LocalStep,
    /// The greatest version among the pulled values of all shards.
    pub global_step: GlobalStep,
    /// The batch of the step; the first one if the step has several.
    pub batch: &'a Batch,
    /// The values that the step is computed from.
    pub values: &'a Values,
}

/// The information that a hook gets about a step that has been taken.
#[derive(Clone, Copy, Debug)]
pub struct StepInfo<'a> {
    /// The number of steps that the worker has taken before this step.
    pub local_step: LocalStep,
    /// The greatest version among all shards after the step.
    pub global_step: GlobalStep,
    /// The mean loss over the batches of the step.
    pub loss: f32,
    /// The batch of the step; the last one if the step has several.
    pub batch: &'a Batch,
    /// The values that were pulled for the next step.
    pub values: &'a Values,
    /// The Euclidean norm of the gradients before they were clipped by norm. It is measured in every step if
    /// the job clips by norm. Otherwise it is measured about once per report, and is `None` in other steps.
    pub gradient_norm: Option<f32>,
    /// The time from the start of the computation to the arrival of the next values, in seconds.
    pub seconds: f64,
    /// The verdict of each shard on the gradients; empty if the gradients were dropped.
    pub verdicts: &'a [Verdict],
}

/// The tensors that a hook has fetched in a step: their values before the update.
#[derive(Clone, Copy, Debug)]
pub struct Fetched<'a> {
    /// The worker that took the step.
    pub task: TaskId,
    /// The number of steps that the worker has taken before this step.
    pub local_step: LocalStep,
    /// The greatest version among all shards after the step.
    pub global_step: GlobalStep,
    /// The tensors, in the order of the names in [`FetchConfig::names`].
    pub tensors: &'a [FetchedTensor],
}

impl<'a> Fetched<'a> {
    /// Returns the tensor that was requested by this name; `None` if there is none.
    pub fn get(&self, name: &str) -> Option<&'a FetchedTensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// Returns the number that was requested by this name; `None` if there is none, or if it is not a single
    /// number.
    pub fn scalar(&self, name: &str) -> Option<f32> {
        match self.get(name)?.values[..] {
            [number] => Some(number),
            _ => None,
        }
    }
}

/// The information that a hook gets about an evaluation.
#[derive(Clone, Copy, Debug)]
pub struct EvaluationInfo<'a> {
    /// The greatest version among the values that were evaluated.
    pub step: GlobalStep,
    /// The result.
    pub evaluation: &'a Evaluation,
    /// The values that were evaluated: the moving averages if the job keeps them.
    pub values: &'a Arc<Values>,
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
