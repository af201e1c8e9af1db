//! The hooks of a job. The chief's hooks are called about once a second, and a worker's hooks at every step.
//! [`Hooks`] carries constructors, so that each task can make its own hooks.

use std::sync::{Arc, Mutex, PoisonError};

pub use pushpull_chief::hooks::*;
pub use pushpull_chief::{Command, Hook as ChiefHook, HookContext, MakeHook as MakeChiefHook};
use pushpull_messages::job::JobSpec;
pub use pushpull_messages::summary::{HistogramSpec, ImageSpec, SummarySpec, SummaryValue};
pub use pushpull_worker::hooks::{
    FetchEvery, ImageOfBatch, LogEvery as LogEveryOfWorker, OnGradients, StopOnNan as StopWorkerOnNan,
};
pub use pushpull_worker::{
    EvaluationInfo, FETCH_BYTES_MAX, FETCH_NAMES_MAX, FetchConfig, FetchError, Fetched, FetchedTensor,
    GradientMut, Hook as WorkerHook, HookError, MakeHook as MakeWorkerHook, Plots, Start, StepContext,
    StepGradients, StepInfo,
};

/// The constructors of a job's hooks. The chief's hooks are made once for each run, and the workers' hooks
/// are made once for each worker.
#[derive(Clone, Default)]
pub struct Hooks {
    pub(crate) chief: Vec<pushpull_chief::MakeHook>,
    pub(crate) worker: Vec<pushpull_worker::MakeHook>,
    /// The requests of all calls of [`fetch`](Self::fetch). They are checked before the job is trained.
    pub(crate) fetches: Vec<FetchConfig>,
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

    /// Adds a hook that calls a function with the values of the named tensors, in the first step of each
    /// worker and then once in every `every` steps. [`FetchConfig::names`] describes the valid names, such
    /// as `logits` or `dense1/kernel:grad_norm`. The function is called in the process of the worker, and
    /// the worker waits until the function returns. If the process has several workers, the function is
    /// called for one of them at a time.
    #[must_use]
    pub fn fetch(
        mut self,
        names: impl IntoIterator<Item = impl Into<String>>,
        every: u64,
        call: impl FnMut(&Fetched<'_>) + Send + 'static,
    ) -> Self {
        let config = FetchConfig::new(names, every);
        self.fetches.push(config.clone());
        let call = Arc::new(Mutex::new(call));
        self.worker(move || {
            let call = Arc::clone(&call);
            FetchEvery::new(config.clone(), move |fetched: &Fetched<'_>| {
                (call.lock().unwrap_or_else(PoisonError::into_inner))(fetched);
            })
        })
    }

    /// Checks that the graph of a job has what the hooks fetch.
    ///
    /// # Errors
    /// Returns the first fault.
    pub(crate) fn check(&self, job: &JobSpec) -> Result<(), FetchError> {
        if self.fetches.is_empty() {
            return Ok(());
        }
        // Variables that a group freezes have no gradients.
        let mut job = job.clone();
        job.freeze();
        self.fetches.iter().try_for_each(|config| config.check(&job.graph, job.batch_size as usize))
    }

    /// Adds the hooks of another set.
    pub(crate) fn extend(&mut self, more: Self) {
        self.chief.extend(more.chief);
        self.worker.extend(more.worker);
        self.fetches.extend(more.fetches);
    }
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hooks({} of the chief, {} of every worker)", self.chief.len(), self.worker.len())
    }
}
