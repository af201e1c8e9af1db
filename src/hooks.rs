//! Hooks that go along with a job: those of the chief see it about once a second, those of a worker at every step.
//! [`Hooks`] takes them to where they are made.

use std::sync::Arc;

pub use pushpull_chief::hooks::*;
pub use pushpull_chief::{Asks, Hook as ChiefHook, MakeHook as MakeChiefHook, Wish};
pub use pushpull_messages::summary::{HistogramSpec, ImageSpec, SummarySpec, SummaryValue};
pub use pushpull_worker::hooks::{ImageOfBatch, LogEvery as LogEveryOfWorker, StopOnNan as StopWorkerOnNan};
pub use pushpull_worker::{
    Hook as WorkerHook, HookError, MakeHook as MakeWorkerHook, Plots, Start, StepContext, StepInfo,
};

/// Hooks of a job: of the chief, one for each run, and of the workers, one for each of them.
#[derive(Clone, Default)]
pub struct Hooks {
    pub(crate) chief: Vec<pushpull_chief::MakeHook>,
    pub(crate) worker: Vec<pushpull_worker::MakeHook>,
}

impl Hooks {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more of the chief, which only the task that hosts it makes.
    #[must_use]
    pub fn chief<H: pushpull_chief::Hook + 'static>(
        mut self,
        make: impl Fn() -> H + Send + Sync + 'static,
    ) -> Self {
        self.chief.push(Arc::new(move || Box::new(make())));
        self
    }

    /// With one more of every worker.
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
