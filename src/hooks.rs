//! The hooks of a job. The chief's hooks are called about once a second, and a worker's hooks at every step.
//! [`Hooks`] carries constructors, so that each task can make its own hooks.

use std::sync::Arc;

pub use pushpull_chief::hooks::*;
pub use pushpull_chief::{Command, Hook as ChiefHook, HookContext, MakeHook as MakeChiefHook};
pub use pushpull_messages::summary::{HistogramSpec, ImageSpec, SummarySpec, SummaryValue};
pub use pushpull_worker::hooks::{
    ImageOfBatch, LogEvery as LogEveryOfWorker, OnGradients, StopOnNan as StopWorkerOnNan,
};
pub use pushpull_worker::{
    GradientMut, Hook as WorkerHook, HookError, MakeHook as MakeWorkerHook, Plots, Start, StepContext,
    StepGradients, StepInfo,
};

/// The constructors of a job's hooks. The chief's hooks are made once for each run, and the workers' hooks
/// are made once for each worker.
#[derive(Clone, Default)]
pub struct Hooks {
    pub(crate) chief: Vec<pushpull_chief::MakeHook>,
    pub(crate) worker: Vec<pushpull_worker::MakeHook>,
}

impl Hooks {
    /// Makes an empty set of constructors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a hook of the chief. `make` is called only in the task that hosts the chief.
    #[must_use]
    pub fn chief<H: pushpull_chief::Hook + 'static>(
        mut self,
        make: impl Fn() -> H + Send + Sync + 'static,
    ) -> Self {
        self.chief.push(Arc::new(move || Box::new(make())));
        self
    }

    /// Adds a hook that every worker makes for itself.
    #[must_use]
    pub fn worker<H: pushpull_worker::Hook + 'static>(
        mut self,
        make: impl Fn() -> H + Send + Sync + 'static,
    ) -> Self {
        self.worker.push(Arc::new(move || Box::new(make())));
        self
    }
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hooks({} of the chief, {} of every worker)", self.chief.len(), self.worker.len())
    }
}
