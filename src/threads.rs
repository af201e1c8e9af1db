//! Arbiters: which work runs on which thread, and the way to get a result back from one.

use actix_rt::Arbiter;
use tokio::sync::oneshot;

/// Runs a task on that arbiter's thread; the result can be awaited anywhere. An error where the thread panicked.
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
            // Whoever waited may have gone.
            let _ = sender.send(task().await);
        });
    });
    receiver
}

/// Threads for each of `workers` workers on this machine, when nobody says how many.
pub(crate) fn threads_per_worker(workers: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (cores / workers.max(1)).max(1)
}
