//! The settings of the chief, with their limits.

use std::time::Duration;

use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::JobName;
use pushpull_messages::job::JobSpec;
use pushpull_messages::observe::{TraceSpec, WallClock};
use pushpull_messages::out_of_range::OutOfRange;
use pushpull_storage::Stores;
use pushpull_transport::{RetryConfig, ServerConfig};

use crate::checkpoint::{CheckpointConfig, DrainShares, MemoryCheckpointConfig, WarmStartConfig};
use crate::error::ChiefError;

/// The largest value of [`ChiefConfig::reconnect_timeout`].
pub const RECONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(3600);

/// The settings of the chief.
#[derive(Clone, Debug)]
pub struct ChiefConfig {
    /// The time limit for the start of all tasks. Within this time, the chief must reach every ps task, and
    /// every worker must register with the chief. Before that, the store of the checkpoints must respond to
    /// each request within the same limit.
    pub start_timeout: Duration,
    /// How long the chief waits for the workers to leave when the job ends early. If the job never began,
    /// the chief waits this long for workers to connect and to receive the reason why the job ended.
    pub leave_timeout: Duration,
    /// How long a worker may take to reconnect after its connection broke. A worker that takes longer counts
    /// as lost.
    pub reconnect_timeout: Duration,
    /// How long a worker may take to rejoin after the chief was started again, or to register again after the
    /// job has rolled back. A worker that takes longer counts as lost.
    pub rejoin_timeout: Duration,
    /// The time limit for the shards of a trained job to report their final counts.
    pub conclude_timeout: Duration,
    /// How long a shard may leave the chief's query unanswered while its ps task is alive. After this time,
    /// rounded up to seconds, the shard counts as hung, and its task as lost. A query waits for the shard's
    /// current work, such as an update or the first filling of its variables. It does not wait for the
    /// shard's files, which are read and written on another thread. `None` for no limit.
    pub shard_hung_after: Option<Duration>,
    /// How long a job that makes checkpoints, in a directory or in memory, waits for a lost ps task to be
    /// started again. The job then rolls back to its latest checkpoint and goes on. Zero if the loss of a ps
    /// task ends the job at once.
    pub ps_lost_after: Duration,
    /// The time limit for the function that [`Chief::with_before_stop`](crate::Chief::with_before_stop)
    /// sets.
    pub before_stop_timeout: Duration,
    /// The policy for repairing broken connections to ps tasks. By default, the chief stops retrying before
    /// the workers do.
    pub retry: RetryConfig,
    /// The largest number of workers, if workers may join and leave that the cluster spec does not list; the
    /// examples are then divided among those that are there. `None` if the workers are fixed.
    pub workers_max: Option<u32>,
    /// Whether the placement table is written to the log.
    pub log_placement: bool,
    /// The settings of checkpoints; `None` if the job makes none.
    pub checkpoint: Option<CheckpointConfig>,
    /// How often the job keeps a checkpoint in the memory of the ps tasks, of which there must be at least
    /// two; `None` if it keeps none. With such checkpoints, a job rolls back after the loss of a ps task
    /// although it may have no directory.
    pub memory_checkpoint: Option<MemoryCheckpointConfig>,
    /// The settings for taking initial values from another job's checkpoint, used if this job has no
    /// checkpoint of its own to continue from.
    pub warm_start: Option<WarmStartConfig>,
    /// The steps that are traced, if any; their spans are passed to [`Hook::spans`](crate::Hook::spans).
    pub trace: Option<TraceSpec>,
    /// The opener of the stores of checkpoints.
    pub stores: Stores,
    /// The limits of the workers' connections.
    pub server: ServerConfig,
    /// The clock that gives the time of day, which is shown in statuses and written to checkpoints. No
    /// decision depends on this clock.
    pub wall_clock: WallClock,
}

impl Default for ChiefConfig {
    fn default() -> Self {
        Self {
            start_timeout: Duration::from_secs(300),
            leave_timeout: Duration::from_secs(10),
            reconnect_timeout: Duration::from_secs(3),
            rejoin_timeout: Duration::from_secs(30),
            conclude_timeout: Duration::from_secs(60),
            shard_hung_after: Some(Duration::from_secs(300)),
            ps_lost_after: Duration::from_secs(300),
            before_stop_timeout: Duration::from_secs(600),
            retry: RetryConfig { redial_for: Duration::from_secs(3), ..Default::default() },
            workers_max: None,
            log_placement: false,
            checkpoint: None,
            memory_checkpoint: None,
            warm_start: None,
            trace: None,
            stores: Stores::default(),
            server: ServerConfig::default(),
            wall_clock: WallClock::default(),
        }
    }
}

impl ChiefConfig {
    /// Returns the number of workers of a job that lead a replica, including those that may still join: all
    /// workers of the cluster spec, unless the graph has stages.
    pub(crate) fn workers(&self, job: &JobSpec, cluster: &ClusterSpec) -> u32 {
        let listed = cluster.addresses(JobName::Worker).len() as u32;
        job.replicas(self.workers_max.map_or(listed, |max| max.max(listed)))
    }

    /// Checks the range of each setting, and that the settings fit together.
    ///
    /// # Errors
    /// Returns an error that names the first setting that is out of range.
    pub fn validate(&self) -> Result<(), ChiefError> {
        self.retry.validate()?;
        self.checkpoint.as_ref().map_or(Ok(()), CheckpointConfig::validate)?;
        self.memory_checkpoint.as_ref().map_or(Ok(()), MemoryCheckpointConfig::validate)?;
        self.warm_start.as_ref().map_or(Ok(()), WarmStartConfig::validate)?;
        if self.trace.is_some_and(|trace| trace.every == 0) {
            return Err(OutOfRange::new("trace_every", "at least 1", 0).into());
        }
        let reconnect = self.reconnect_timeout;
        if !(Duration::from_millis(1)..=RECONNECT_TIMEOUT_MAX).contains(&reconnect) {
            let expected = format!("from 1 ms to {} s", RECONNECT_TIMEOUT_MAX.as_secs());
            return Err(OutOfRange::new("reconnect_timeout", expected, format!("{reconnect:?}")).into());
        }
        if self.shard_hung_after.is_some_and(|limit| limit.is_zero()) {
            return Err(OutOfRange::new("shard_hung_after", "greater than 0, or no limit", "0").into());
        }
        // A worker whose connection is broken when a drain begins must have time to reconnect and finish.
        if let Some(CheckpointConfig { drain_timeout, .. }) = self.checkpoint
            && DrainShares::of(drain_timeout).workers < reconnect
        {
            let expected = format!("at least 5/3 of reconnect_timeout ({reconnect:?})");
            let got = format!("{drain_timeout:?}");
            return Err(OutOfRange::new("checkpoint.drain_timeout", expected, got).into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_out_of_range_is_named() {
        assert!(ChiefConfig::default().validate().is_ok());
        for reconnect_timeout in [Duration::ZERO, 2 * RECONNECT_TIMEOUT_MAX] {
            let config = ChiefConfig { reconnect_timeout, ..Default::default() };
            let error = config.validate().unwrap_err().to_string();
            assert!(error.starts_with("reconnect_timeout must be from 1 ms to 3600 s, but is "), "{error}");
        }
        let config = ChiefConfig { trace: Some(TraceSpec::every(0)), ..Default::default() };
        assert_eq!(config.validate().unwrap_err().to_string(), "trace_every must be at least 1, but is 0");
        let config = ChiefConfig { shard_hung_after: Some(Duration::ZERO), ..Default::default() };
        assert!(config.validate().unwrap_err().to_string().starts_with("shard_hung_after must be greater"));
        let retry = RetryConfig { connections_max: 0, ..RetryConfig::default() };
        let config = ChiefConfig { retry, ..Default::default() };
        assert!(config.validate().unwrap_err().to_string().contains("connections_max"));
    }

    #[test]
    fn a_drain_leaves_time_to_reconnect() {
        let second = Duration::from_secs(1);
        let config = |drain, reconnect_timeout| {
            let checkpoint = CheckpointConfig { drain_timeout: drain, ..CheckpointConfig::new("here") };
            ChiefConfig { checkpoint: Some(checkpoint), reconnect_timeout, ..Default::default() }
        };
        assert!(config(5 * second, 3 * second).validate().is_ok());
        let error = config(4 * second, 3 * second).validate().unwrap_err().to_string();
        let wanted = "checkpoint.drain_timeout must be at least 5/3 of reconnect_timeout (3s), but is 4s";
        assert_eq!(error, wanted);
    }
}
