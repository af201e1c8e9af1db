//! Arbiters: the threads that tasks run on, and the way to get a result back from one.

use actix_rt::Arbiter;
use tokio::sync::oneshot;

/// Runs a task on the arbiter's thread. The result can be awaited anywhere; it is an error where the thread
/// panicked.
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
            // The receiver may have been dropped.
            let _ = sender.send(task().await);
        });
    });
    receiver
}

/// Returns the default number of threads for each of `workers` workers on this machine: an equal share of the
/// cores.
pub(crate) fn threads_per_worker(workers: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (cores / workers.max(1)).max(1)
}
