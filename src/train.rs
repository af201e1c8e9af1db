//! Trains a job on a cluster. A job itself must not depend on clusters.

use crate::cluster::{Cluster, Kind};
use crate::collector::Collector;
use crate::embedded::Embedded;
use crate::error::Error;
use crate::job::Job;
use crate::trained::Trained;

impl Job {
    /// Trains the job on a cluster, and returns its report and its variables. Blocks until the job has
    /// ended.
    ///
    /// # Errors
    /// Returns an error if the job cannot start or fails, or if it was stopped before its last step and
    /// saved.
    pub fn train(self, cluster: Cluster) -> Result<Trained, Error> {
        match cluster.0 {
            Kind::Embedded(embedded) => self.train_embedded(*embedded),
            #[cfg(feature = "programs")]
            Kind::Env => on_own_thread(|| crate::programs::train_from_env(&self)),
        }
    }

    fn train_embedded(self, mut embedded: Embedded) -> Result<Trained, Error> {
        let cluster = embedded.cluster().map_err(|error| Error::Cluster(format!("{error:#}")))?;
        let job = self.spec(embedded.workers)?;
        embedded.hooks.extend(self.hooks.chief);
        embedded.worker_config.hooks.extend(self.hooks.worker);
        embedded.worker_config.datasets = self.datasets;
        embedded.chief_config.checkpoint = self.checkpoints.or(embedded.chief_config.checkpoint);
        let (collector, spec) = (Collector::default(), job.clone());
        let kept = collector.clone();
        on_own_thread(move || actix_rt::System::new().block_on(embedded.run_collected(spec, &kept)))
            .or_else(|error| match collector.is_complete() {
                true => {
                    tracing::warn!("a task failed after the job was trained: {error:#}");
                    Ok(())
                }
                false => Err(Error::Training(format!("{error:#}"))),
            })?;
        Trained::new(&job, &cluster, collector)
    }
}

/// Runs `work` on a thread of its own, because the caller may be in an asynchronous runtime.
fn on_own_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let ended = std::thread::scope(|scope| scope.spawn(work).join());
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
