//! Work on files that would block a runtime.

/// Runs work on a thread of tokio's that may block.
///
/// # Panics
/// If the work panics.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("the work does not panic, and nothing aborts it")
}
