//! The one place of this room where threads are started: for work that blocks or takes long.

use tokio::task::JoinHandle;

/// Does work on a thread for blocking work of the current runtime.
pub(crate) fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    tokio::task::spawn_blocking(work)
}
