//! What an operator may set on a worker task.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pushpull_messages::message::{REPORT_EVERY_MAX, REPORT_EVERY_MIN};
use pushpull_transport::RetryConfig;

use crate::error::WorkerError;
use crate::hook::MakeHook;
use crate::replica::{GraphReplica, Replica, ReplicaConfig, ReplicaError};

/// Makes the replica that computes the gradients on one device of this worker.
pub type MakeReplica = Arc<dyn Fn(ReplicaConfig<'_>) -> Result<Box<dyn Replica>, ReplicaError> + Send + Sync>;

/// The settings of one worker task.
#[derive(Clone)]
pub struct WorkerConfig {
    /// Threads that compute one step together, shared by all devices.
    pub threads: usize,
    /// Virtual devices on the host's processor, each with a clone of the graph and its part of every batch.
    pub devices: usize,
    /// An operation that asks for a device which its clone does not run on is run by the clone all the same.
    pub soft_placement: bool,
    /// Print where every operation runs.
    pub log_placement: bool,
    /// Where this host keeps the data, instead of the directory that the job names.
    pub data_dir: Option<PathBuf>,
    /// So long it waits for its peers to come up.
    pub start_timeout: Duration,
    /// How it deals with connections that break. It outlasts the chief, whose word is the reason when a ps is lost.
    pub retry: RetryConfig,
    /// Gradient bytes that are on their way to the ps tasks at most; a push beyond that waits.
    pub in_flight_bytes_max: u64,
    /// Between two reports to the chief.
    pub report_every: Duration,
    /// The engine: our own graph executor, unless told otherwise.
    pub replica: MakeReplica,
    /// What goes along with the training: each worker makes its own.
    pub hooks: Vec<MakeHook>,
}

/// Most devices of one worker.
pub const DEVICES_MAX: usize = 64;
/// Most threads for one step.
pub const THREADS_MAX: usize = 1024;

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            threads: 1,
            devices: 1,
            soft_placement: true,
            log_placement: false,
            data_dir: None,
            start_timeout: Duration::from_secs(300),
            retry: RetryConfig { redial_for: Duration::from_secs(8), ..Default::default() },
            in_flight_bytes_max: 1 << 30,
            report_every: Duration::from_secs(1),
            replica: Arc::new(|config| Ok(Box::new(GraphReplica::new(config)?))),
            hooks: Vec::new(),
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
        if !(1..=DEVICES_MAX).contains(&self.devices) {
            return config("devices", format!("1 to {DEVICES_MAX}"), self.devices.to_string());
        }
        if self.in_flight_bytes_max == 0 {
            return config("in_flight_bytes_max", "at least 1".into(), "0".into());
        }
        if !(REPORT_EVERY_MIN..=REPORT_EVERY_MAX).contains(&self.report_every) {
            let expected = format!("{REPORT_EVERY_MIN:?} to {REPORT_EVERY_MAX:?}");
            return config("report_every", expected, format!("{:?}", self.report_every));
        }
        self.retry.validate()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_come_often_enough_and_not_too_often() {
        let with = |report_every| WorkerConfig { report_every, ..Default::default() }.validate();
        for taken in [REPORT_EVERY_MIN, REPORT_EVERY_MAX] {
            assert!(with(taken).is_ok(), "{taken:?}");
        }
        for refused in [Duration::ZERO, REPORT_EVERY_MAX + Duration::from_millis(1)] {
            let Err(WorkerError::Config { key, .. }) = with(refused) else { panic!("{refused:?} is taken") };
            assert_eq!(key, "report_every");
        }
    }
}
