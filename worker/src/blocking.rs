//! Work that would block the thread of an actor. This module must not depend on what the work is.

use crate::error::WorkerError;

/// Runs slow work on a separate thread, which leaves this thread free for heartbeats and signals. If
/// `own_threads` is false, runs the work on this thread.
///
/// # Errors
/// If the work fails or panics.
pub(crate) async fn blocking<T: Send + 'static>(
    own_threads: bool,
    work: impl FnOnce() -> Result<T, WorkerError> + Send + 'static,
) -> Result<T, WorkerError> {
    if !own_threads {
        return work();
    }
    // The task is never aborted, so only a panic can prevent it from returning.
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(WorkerError::PreparationPanicked))
}
