//! Runs the parts of a run on this task: each has a thread for its host operations, and one for its program.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use pushpull_messages::tensor::Tensor;
use tokio::task::JoinHandle;

use crate::error::RunError;
use crate::part::{run_engine, run_host};
use crate::run::Run;
use crate::threads::blocking;

type Values = Result<Vec<Arc<Tensor>>, RunError>;

/// Runs the parts of this task, and returns the fetches if one of them is the home part. The caller must have
/// made sure that the threads are to be had at once: parts wait for each other.
///
/// # Errors
/// Returns the error with which the run has failed.
pub(crate) async fn run_parts(run: &Arc<Run>) -> Values {
    let mut threads = Vec::new();
    for (part, own) in run.plan.parts_of(run.index) {
        if own.engine.is_some() {
            threads.push(spawn(run, move |run| run_engine(run, part).map(|()| Vec::new())));
        }
        if !own.steps.is_empty() || part == run.plan.home {
            threads.push(spawn(run, move |run| run_host(run, part)));
        }
    }
    let mut fetches = Vec::new();
    for thread in threads {
        // A thread ends with an error of its own only if the runtime stops.
        if let Ok(Ok(values)) = thread.await {
            fetches.extend(values);
        }
    }
    run.control.check().map(|()| fetches)
}

/// Starts a thread of a run. If its work fails or panics, the run fails at once: other threads may wait for
/// its values.
fn spawn(run: &Arc<Run>, work: impl FnOnce(&Run) -> Values + Send + 'static) -> JoinHandle<Values> {
    let run = Arc::clone(run);
    blocking(move || {
        let result = catch_unwind(AssertUnwindSafe(|| work(&run))).unwrap_or_else(|_| Err(run.panicked()));
        result.inspect_err(|error| run.control.fail(error.clone()))
    })
}
