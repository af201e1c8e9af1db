//! The threads of tasks that share this process. This module starts all of these threads. It also runs tasks
//! on arbiters, which are actix's threads, and returns the tasks' results.

use std::thread::JoinHandle;

use actix_rt::Arbiter;
use tokio::sync::oneshot;

/// Starts a thread for a task.
pub(crate) fn arbiter() -> Arbiter {
    Arbiter::new()
}

/// Starts a thread called `name`.
///
/// # Errors
/// If the operating system cannot start a thread.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work)
}

/// Runs a task on the arbiter's thread. The returned receiver can be awaited on any thread. It yields an
/// error if the arbiter's thread panics.
pub(crate) fn run_on<T, F>(
    arbiter: &Arbiter,
    task: impl FnOnce() -> F + Send + 'static,
) -> oneshot::Receiver<T>
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    let (sender, receiver) = oneshot::channel();
    arbiter.spawn_fn(move || {
        actix_rt::spawn(async move {
            // An error here means that the caller has dropped the receiver.
            let _ = sender.send(task().await);
        });
    });
    receiver
}

/// Returns the result of a task that ran on another thread.
///
/// # Errors
/// If the thread panicked.
#[cfg(feature = "programs")]
pub(crate) fn panicked<T>(result: Result<T, oneshot::error::RecvError>) -> anyhow::Result<T> {
    result.map_err(|_| anyhow::anyhow!("a thread of this task panicked: see the message above"))
}

/// Returns the default number of threads per worker when `workers` workers share this machine's cores.
pub(crate) fn threads_per_worker(workers: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (cores / workers.max(1)).max(1)
}
