//! The threads that compute a worker's steps. This module must not depend on graphs.

use std::sync::Arc;

use pushpull_kernels::cpu::Threads;

use super::error::ReplicaError;

/// The threads of one worker, and the number of them that one device may use at a time.
#[derive(Clone, Debug)]
pub struct Compute {
    /// The worker's threads; `None` if the calling thread does the work.
    pool: Option<Arc<rayon::ThreadPool>>,
    threads: Threads,
}

impl Compute {
    /// Starts `threads` threads that `devices` devices share.
    ///
    /// # Errors
    /// If the operating system cannot start the threads.
    pub fn new(threads: usize, devices: usize) -> Result<Self, ReplicaError> {
        // Rounding up is safe, because the pool limits the total number of threads of all devices.
        let each = threads.div_ceil(devices.max(1)).max(1);
        let pool = (threads > 1 || devices > 1).then(|| {
            let named = rayon::ThreadPoolBuilder::new().thread_name(|index| format!("compute-{index}"));
            named.num_threads(threads).build().map(Arc::new)
        });
        let pool =
            pool.transpose().map_err(|error| ReplicaError::Threads { threads, reason: error.to_string() })?;
        Ok(Self { pool, threads: if each > 1 { Threads::Pool(each) } else { Threads::One } })
    }

    /// Runs `work` in the pool if there is one. Parallel kernels split their work within the pool that they
    /// run in.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match &self.pool {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }

    /// Returns the number of threads that one device may use.
    pub(crate) const fn threads(&self) -> Threads {
        self.threads
    }
}
