//! Work on files that would block a runtime.

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Begins `work` on one of tokio's threads for blocking work. Returns `None` if the caller has no runtime.
pub(crate) fn begin(work: impl FnOnce() + Send + 'static) -> Option<JoinHandle<()>> {
    Handle::try_current().ok().map(|runtime| runtime.spawn_blocking(work))
}
