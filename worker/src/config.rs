//! What an operator may set on a worker task.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use messages::job::JobSpec;
use messages::tensor::Shape;

use crate::error::WorkerError;
use crate::replica::{GraphReplica, Replica, ReplicaError};

/// Makes the replica that computes this worker's gradients, for data of that shape per example.
pub type MakeReplica =
    Arc<dyn Fn(&JobSpec, &Shape, usize) -> Result<Box<dyn Replica>, ReplicaError> + Send + Sync>;

/// The settings of one worker task.
#[derive(Clone)]
pub struct WorkerConfig {
    /// Threads that compute one step together.
    pub threads: usize,
    /// Where this host keeps the data, instead of the directory that the job names.
    pub data_dir: Option<PathBuf>,
    /// So long it waits for its peers to come up.
    pub start_timeout: Duration,
    /// Gradient bytes that are on their way to the ps tasks at most; a push beyond that waits.
    pub in_flight_bytes_max: u64,
    /// Between two reports to the chief.
    pub report_every: Duration,
    /// The engine: our own graph executor, unless told otherwise.
    pub replica: MakeReplica,
}

/// Most threads for one step.
pub const THREADS_MAX: usize = 1024;

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            threads: 1,
            data_dir: None,
            start_timeout: Duration::from_secs(300),
            in_flight_bytes_max: 1 << 30,
            report_every: Duration::from_secs(1),
            replica: Arc::new(|job, features, threads| {
                let replica =
                    GraphReplica::new(job.graph.clone(), job.batch_size as usize, features, threads)?;
                Ok(Box::new(replica))
            }),
        }
    }
}

impl WorkerConfig {
    /// Checks the numbers.
    ///
    /// # Errors
    /// Names the key that is out of range.
    pub fn validate(&self) -> Result<(), WorkerError> {
        let config = |key, expected: String, got: String| Err(WorkerError::Config { key, expected, got });
        if !(1..=THREADS_MAX).contains(&self.threads) {
            return config("threads", format!("1 to {THREADS_MAX}"), self.threads.to_string());
        }
        if self.in_flight_bytes_max == 0 {
            return config("in_flight_bytes_max", "at least 1".into(), "0".into());
        }
        Ok(())
    }
}
