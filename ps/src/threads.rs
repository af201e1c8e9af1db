//! The threads of a ps task. All are started here. A task without threads of its own calls no function here.

use actix_rt::Arbiter;

/// Starts a thread for a shard. `name` shows in `top -H` and in profiles; Linux keeps 15 characters of it.
pub(crate) fn arbiter(name: String) -> Arbiter {
    let arbiter = Arbiter::new();
    arbiter.spawn_fn(move || {
        #[cfg(target_os = "linux")]
        if let Ok(name) = std::ffi::CString::new(name) {
            // A thread without its name works as well.
            let _ = rustix::thread::set_name(&name);
        }
        #[cfg(not(target_os = "linux"))]
        drop(name);
    });
    arbiter
}

/// Starts a thread called `name`. Nothing waits for its end.
///
/// # Panics
/// If the system cannot start a thread.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.spawn(work).expect("a thread can be started");
}

/// Starts the threads that share large updates. Returns `None` if the system cannot start them.
pub(crate) fn updates(threads: usize) -> Option<rayon::ThreadPool> {
    let named = rayon::ThreadPoolBuilder::new().thread_name(|index| format!("update-{index}"));
    let started = named.num_threads(threads).build();
    if let Err(error) = &started {
        tracing::warn!(%error, threads, "cannot start threads for updates; each shard works alone");
    }
    started.ok()
}
