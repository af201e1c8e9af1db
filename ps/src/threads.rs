//! The threads of a ps task. All are started here. A task without threads of its own calls neither function.

use actix_rt::Arbiter;

/// Starts a thread for a shard.
pub(crate) fn arbiter() -> Arbiter {
    Arbiter::new()
}

/// Starts a thread called `name`. Nothing waits for its end.
///
/// # Panics
/// If the system cannot start a thread.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.spawn(work).expect("a thread can be started");
}
