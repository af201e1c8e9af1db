//! The settings of a worker task. This module reads neither flags nor files; its caller fills in the values.

use std::path::PathBuf;
use std::time::Duration;

use pushpull_cuda::Precision;
use pushpull_input::Datasets;
use pushpull_messages::message::{REPORT_EVERY_MAX, REPORT_EVERY_MIN};
use pushpull_messages::out_of_range::OutOfRange;
use pushpull_transport::RetryConfig;

use crate::client::ClientConfig;
use crate::devices::{DeviceList, MakeReplica, engine_replicas};
use crate::error::WorkerError;
use crate::hooks::MakeHook;
use crate::stages::BeforePass;

/// Whether the threads of a worker give way to other threads of their core.
///
/// Let them do so if all threads of the worker have to share one core, and its links stay within the host:
/// a ps task that answers one worker is then not interrupted by it before it answers the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivesWay {
    /// They never give way.
    Never,
    /// They give way while no other program computes on the core. Such a program would get most of it.
    WhileAlone,
    /// They always give way: no other program computes on the core.
    Always,
}

/// The settings of one worker task.
#[derive(Clone)]
pub struct WorkerConfig {
    /// The number of threads that compute a step together; all devices share them.
    pub threads: usize,
    /// The worker's devices. Each has a clone of the graph and computes a part of every batch.
    pub devices: DeviceList,
    /// If true, each device, the preparation of the training, and the reading of the input have threads of
    /// their own. If false, the whole task runs on the thread that starts it; a simulation of many tasks
    /// needs this.
    pub own_threads: bool,
    /// Whether the thread that starts this worker, and the threads that it starts, give way to other threads
    /// of their core, from the start of a synchronous job of one host on.
    pub gives_way: GivesWay,
    /// If true, an operation may request another device than that of its replica, but still runs on its
    /// replica's device. If false, such a request is an error.
    pub soft_placement: bool,
    /// If true, the worker logs the devices on which each operation runs.
    pub log_placement: bool,
    /// The directory of the data on this host; `None` stands for the directory that the job names.
    pub data_dir: Option<PathBuf>,
    /// The data sets of this program, which a job may name.
    pub datasets: Datasets,
    /// How long the worker waits for the other tasks to start.
    pub start_timeout: Duration,
    /// The address that a worker listens on if it is a stage of a replica, or if gradients of other workers
    /// travel through it, as `host:port`; `None` for the task's address in the cluster spec. Other workers do
    /// not listen.
    pub bind: Option<String>,
    /// A function that a stage of a replica calls before each of its passes; a benchmark can lengthen them
    /// with it.
    pub before_pass: Option<BeforePass>,
    /// How the worker handles broken connections. The worker retries for longer than the chief, so the chief
    /// is the first to report a lost ps task.
    pub retry: RetryConfig,
    /// How long a worker that has lost the chief waits for the chief to be started again. The worker
    /// continues to train during this time.
    pub chief_lost_after: Duration,
    /// The maximum number of gradient bytes in flight to the ps tasks. A push that would exceed this limit
    /// waits for the replies to earlier pushes.
    pub in_flight_bytes_max: u64,
    /// The time between two reports to the chief.
    pub report_every: Duration,
    /// The lower bound of the time limit for the computation of a batch; zero for no limit. The limit is
    /// `hung_after` or 20 times the longest computation so far, whichever is longer. For the first
    /// computation, it is ten times `hung_after`. A wait for input may take ten times `hung_after` or 20
    /// times the longest wait so far, whichever is longer. A worker that exceeds a limit leaves the job.
    pub hung_after: Duration,
    /// The function that creates the replica of each device. The default is a replica that runs pushpull's
    /// own engine, on the processor or on a card.
    pub replica: MakeReplica,
    /// The functions that create the worker's hooks.
    pub hooks: Vec<MakeHook>,
}

/// The maximum number of threads that compute a step together.
pub const THREADS_MAX: usize = 1024;

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            threads: 1,
            devices: DeviceList::cpus(1),
            own_threads: true,
            gives_way: GivesWay::Never,
            soft_placement: true,
            log_placement: false,
            data_dir: None,
            datasets: Datasets::default(),
            start_timeout: Duration::from_secs(300),
            bind: None,
            before_pass: None,
            retry: RetryConfig { redial_for: Duration::from_secs(8), ..Default::default() },
            chief_lost_after: Duration::from_secs(300),
            in_flight_bytes_max: 1 << 30,
            report_every: Duration::from_secs(1),
            hung_after: Duration::from_secs(60),
            replica: engine_replicas(1.0, Precision::F32),
            hooks: Vec::new(),
        }
    }
}

impl WorkerConfig {
    /// Returns the settings of the push/pull client.
    pub const fn client(&self) -> ClientConfig {
        let Self { start_timeout, retry, in_flight_bytes_max, .. } = self;
        ClientConfig {
            start_timeout: *start_timeout,
            retry: *retry,
            in_flight_bytes_max: *in_flight_bytes_max,
        }
    }

    /// Checks that every setting is in range.
    ///
    /// # Errors
    /// If a setting is out of range; the error names it.
    pub fn validate(&self) -> Result<(), WorkerError> {
        if !(1..=THREADS_MAX).contains(&self.threads) {
            return Err(OutOfRange::new("threads", format!("1 to {THREADS_MAX}"), self.threads).into());
        }
        if self.in_flight_bytes_max == 0 {
            return Err(OutOfRange::new("in_flight_bytes_max", "at least 1", 0).into());
        }
        if !(REPORT_EVERY_MIN..=REPORT_EVERY_MAX).contains(&self.report_every) {
            let expected = format!("{REPORT_EVERY_MIN:?} to {REPORT_EVERY_MAX:?}");
            return Err(OutOfRange::new("report_every", expected, format!("{:?}", self.report_every)).into());
        }
        self.retry.validate()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_between_reports_is_bounded() {
        let with = |report_every| WorkerConfig { report_every, ..Default::default() }.validate();
        for taken in [REPORT_EVERY_MIN, REPORT_EVERY_MAX] {
            assert!(with(taken).is_ok(), "{taken:?}");
        }
        for refused in [Duration::ZERO, REPORT_EVERY_MAX + Duration::from_millis(1)] {
            let Err(WorkerError::Config(error)) = with(refused) else { panic!("{refused:?} is taken") };
            assert_eq!(error.key, "report_every");
        }
    }
}
