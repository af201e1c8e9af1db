//! Work that would block the thread of an actor. This module must not depend on what the work is.

use pushpull_input::InputError;
use tokio::sync::oneshot;

use crate::error::WorkerError;
use crate::threads;

/// Runs slow work on a new thread called `name`, so that the calling thread stays free for heartbeats and
/// signals. If `own_threads` is false, runs the work on the calling thread. The new thread does not belong
/// to the async runtime: when a runtime ends, it waits for its own threads, even if one of them hangs.
///
/// # Errors
/// If the work fails or panics; if the operating system cannot start a thread.
pub(crate) async fn blocking<T: Send + 'static>(
    own_threads: bool,
    name: &str,
    work: impl FnOnce() -> Result<T, WorkerError> + Send + 'static,
) -> Result<T, WorkerError> {
    if !own_threads {
        return work();
    }
    let (done, result) = oneshot::channel();
    // An error of `send` means that the caller no longer waits for the result, so it is ignored.
    spawn(name, move || drop(done.send(work())))?;
    // If the thread has ended without a result, it has panicked.
    result.await.unwrap_or(Err(WorkerError::PreparationPanicked))
}

/// Starts a thread called `name`. Nothing waits for its end.
///
/// # Errors
/// [`InputError::Thread`] if the operating system cannot start a thread.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), WorkerError> {
    threads::spawn(name, work).map_err(|source| InputError::Thread { source }.into())
}
