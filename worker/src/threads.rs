//! Starts the threads of a worker, except its compute threads, which `devices::compute` starts. A worker
//! without threads of its own calls neither function of this module.

use actix_rt::Arbiter;

/// Starts a thread for a device.
pub(crate) fn arbiter() -> Arbiter {
    Arbiter::new()
}

/// Starts a thread called `name`. Nothing waits for its end.
///
/// # Errors
/// If the operating system cannot start a thread.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}
