//! The threads of the chief. All are started here.

/// Starts a thread called `name`. Nothing waits for its end.
///
/// # Errors
/// Returns an error if the operating system cannot start a thread.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}
