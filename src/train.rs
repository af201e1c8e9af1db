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
            Kind::Env => crate::programs::train_from_env(&self),
        }
    }

    fn train_embedded(self, mut embedded: Embedded) -> Result<Trained, Error> {
        let job = self.spec(embedded.workers)?;
        let cluster = embedded.cluster().map_err(|error| Error::Cluster(format!("{error:#}")))?;
        embedded.hooks.extend(self.hooks.chief);
        embedded.worker_config.hooks.extend(self.hooks.worker);
        embedded.chief_config.checkpoint = self.checkpoints.or(embedded.chief_config.checkpoint);
        let (collector, spec) = (Collector::default(), job.clone());
        let kept = collector.clone();
        // The cluster runs on a thread of its own, because the caller may be in an asynchronous runtime.
        let run = move || actix_rt::System::new().block_on(embedded.run_collected(spec, &kept));
        let ended = std::thread::scope(|scope| scope.spawn(run).join());
        ended
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            .map_err(|error| Error::Training(format!("{error:#}")))?;
        Trained::new(&job, &cluster, collector)
    }
}
