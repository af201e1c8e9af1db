//! Starts every thread that reads data.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread called `name`.
///
/// # Errors
/// If the operating system cannot start a thread.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.to_owned()).spawn(work)
}
