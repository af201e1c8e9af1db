//! The threads of a ps task. All are started here. A task without threads of its own calls no function here.

use actix_rt::Arbiter;

/// Starts a thread for a shard, which may use these cores, as [`use_cores`] says. `name` shows in `top -H`
/// and in profiles; Linux keeps 15 characters of it.
pub(crate) fn arbiter(name: String, cores: Vec<usize>) -> Arbiter {
    let arbiter = Arbiter::new();
    arbiter.spawn_fn(move || {
        use_cores(&cores);
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

/// Starts the threads that share large updates, which may use these cores, as [`use_cores`] says. Returns
/// `None` if the system cannot start them.
pub(crate) fn updates(threads: usize, cores: Vec<usize>) -> Option<rayon::ThreadPool> {
    let named = rayon::ThreadPoolBuilder::new().thread_name(|index| format!("update-{index}"));
    let named = named.start_handler(move |_| use_cores(&cores));
    let started = named.num_threads(threads).build();
    if let Err(error) = &started {
        tracing::warn!(%error, threads, "cannot start threads for updates; each shard works alone");
    }
    started.ok()
}

/// Lets the current thread use these cores. With an empty list, or if the system refuses, it may use the
/// cores of the thread that has started it.
fn use_cores(cores: &[usize]) {
    #[cfg(target_os = "linux")]
    if !cores.is_empty() {
        let mut set = rustix::thread::CpuSet::new();
        let known = cores.iter().filter(|&&core| core < rustix::thread::CpuSet::MAX_CPU);
        known.for_each(|&core| set.set(core));
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = cores;
}
