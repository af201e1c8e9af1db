//! The progress of a job, and the thread that passes it to a function of the calling program.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use pushpull_chief::{Hook, HookContext, MakeHook, TrainingSnapshot};
use pushpull_messages::id::GlobalStep;
use pushpull_messages::job::JobSpec;

use crate::threads;

/// The progress of a job that trains.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    /// The number of updates applied so far.
    pub step: u64,
    /// The number of updates at which the training ends. An early stop lowers this number; in the last call,
    /// it is the number of updates that were applied.
    pub last_step: u64,
    /// The mean, over the present workers, of the last training loss that each has reported; `None` before
    /// the first report.
    pub loss: Option<f32>,
    /// The metrics of the model on the training batches, by name: each is the mean, over the present workers,
    /// of the last value that each has reported. A metric that is not known yet is missing.
    pub metrics: BTreeMap<String, f32>,
    /// The number of examples per second, over all workers, since the training began.
    pub examples_per_second: f64,
    /// The number of workers that train.
    pub workers: usize,
    /// The time since the training began.
    pub elapsed: Duration,
}

/// A function that is called with the progress of a job.
pub(crate) type OnProgress = Arc<Mutex<dyn FnMut(&Progress) + Send>>;

/// The state that the chief's hook shares with the thread that calls the function.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The newest progress, if the function has not been called with it yet. Newer progress replaces it, so
    /// a slow function misses some progress and delays nothing.
    latest: Option<Progress>,
    /// Whether no more progress follows.
    ended: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_one();
    }

    /// Waits for the next progress; returns `None` if no more follows.
    fn next(&self) -> Option<Progress> {
        let waits = |state: &mut State| state.latest.is_none() && !state.ended;
        let state = self.changed.wait_while(self.state(), waits);
        state.unwrap_or_else(PoisonError::into_inner).latest.take()
    }
}

/// A thread that calls a function with the progress of a running job. Dropping the watcher waits until the
/// last call has returned.
pub(crate) struct Watcher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Starts the thread that calls `call`.
    ///
    /// # Errors
    /// Returns an error if the operating system cannot start the thread.
    pub(crate) fn start(call: OnProgress) -> std::io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let source = Arc::clone(&shared);
        let work = move || {
            let mut call = call.lock().unwrap_or_else(PoisonError::into_inner);
            while let Some(progress) = source.next() {
                call(&progress);
            }
        };
        let thread = threads::spawn("progress", work)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Returns the constructor of the chief's hook that passes on the progress.
    pub(crate) fn hook(&self) -> MakeHook {
        let shared = Arc::clone(&self.shared);
        Arc::new(move || {
            Box::new(Reporter { shared: Arc::clone(&shared), began: GlobalStep(0), step_examples: 0 })
        })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.change(|state| state.ended = true);
        let thread = self.thread.take().expect("it is joined once");
        if thread.join().is_err() {
            tracing::warn!("the function of Job::on_progress panicked; it was not called again");
        }
    }
}

/// The chief's hook that passes on the progress, about once a second and at the end of the training.
struct Reporter {
    shared: Arc<Shared>,
    /// The step at which this run began.
    began: GlobalStep,
    /// The number of examples from which a gradient is computed.
    step_examples: u64,
}

impl Hook for Reporter {
    fn begin(&mut self, job: &JobSpec, step: GlobalStep) {
        (self.began, self.step_examples) = (step, job.step_examples());
    }

    fn progress(&mut self, snapshot: &TrainingSnapshot, _: &mut HookContext) {
        let TrainingSnapshot { at, progress, .. } = snapshot;
        let gradients = progress.global_step.0.saturating_sub(self.began.0) as f64
            * f64::from(progress.gradients_per_update);
        // The duration counts as at least 1 ms. With a duration of 0, the rate would be infinite or NaN.
        let rate = gradients * self.step_examples as f64 / at.as_secs_f64().max(1e-3);
        let new = Progress {
            step: progress.global_step.0,
            last_step: if progress.running { progress.last_step.0 } else { progress.global_step.0 },
            loss: progress.loss,
            metrics: progress.metrics.iter().map(|metric| (metric.name.clone(), metric.value)).collect(),
            examples_per_second: rate,
            workers: progress.workers,
            elapsed: *at,
        };
        self.shared.change(|state| state.latest = Some(new));
    }
}
