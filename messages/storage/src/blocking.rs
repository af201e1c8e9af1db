//! Work on files that would block a runtime.

/// Runs `work` on one of tokio's threads for blocking work.
///
/// # Panics
/// If the work panics.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("the work does not panic, and nothing aborts it")
}
