//! The snapshot of a job, as its chief sees it. Does not know how the page, `pushpull top` and metrics show
//! it.

use serde::{Deserialize, Serialize};

use super::times::TimeHistogram;
use super::worker::VerdictCounters;
use crate::id::{GlobalStep, LocalStep, ShardId, TaskId, Version};
use crate::message::{MetricValue, ShardCounters};

/// The state of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChiefSnapshot {
    /// A summary of the job.
    pub job: JobSummary,
    /// The phase of the job.
    pub phase: JobPhase,
    /// The reason why the job stops, failed, or ends early.
    pub reason: Option<String>,
    /// Whether the job has ended with an error.
    #[serde(default)]
    pub failed: bool,
    /// The time of the snapshot, in milliseconds since the epoch, on the chief's clock.
    pub at_ms: u64,
    /// The time since the chief was started, in milliseconds.
    pub up_ms: u64,
    /// The highest version of a shard.
    pub step: GlobalStep,
    /// The step at which the training ends.
    pub last_step: GlobalStep,
    /// The step at which this run began.
    pub began: GlobalStep,
    /// The mean loss over the workers' last steps.
    pub loss: Option<f32>,
    /// The updates per second, over the last seconds.
    #[serde(deserialize_with = "crate::float::or_nan")]
    pub steps_per_s: f64,
    /// The examples per second for which workers computed gradients, over the last seconds.
    #[serde(deserialize_with = "crate::float::or_nan")]
    pub examples_per_s: f64,
    /// The last evaluation: its step and its metrics, including the loss.
    pub evaluation: Option<(GlobalStep, Vec<MetricValue>)>,
    /// The tasks of the cluster in its order, without evaluators, which the chief does not know, and without
    /// workers that have announced their leave.
    pub tasks: Vec<TaskRow>,
    /// Every worker, by its index.
    pub workers: Vec<WorkerRow>,
    /// Every shard that has been reached.
    pub shards: Vec<ShardRow>,
    /// The checkpoints, if they are saved.
    pub checkpoints: Option<Checkpoints>,
    /// The tasks that are slow or silent, and why.
    pub findings: Vec<Finding>,
    /// Whether a person may request a save or a stop.
    pub accepts_wishes: bool,
    /// The spans dropped from the timeline, if one is written.
    pub spans_lost: u64,
}

/// A summary of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSummary {
    /// The graph's name.
    pub name: String,
    /// The synchronisation policy, as on a command line.
    pub sync: String,
    /// The optimizer's name.
    pub optimizer: String,
    /// The examples in one worker's batch.
    pub batch_size: u32,
    /// The number of variables.
    pub variables: u64,
    /// The bytes of all variables.
    pub variable_bytes: u64,
}

/// The phase of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobPhase {
    /// The chief waits for tasks.
    #[default]
    Starting,
    /// The workers train.
    Training,
    /// One worker evaluates.
    Evaluating,
    /// The job cannot continue.
    Failing,
    /// The job is over.
    Ended,
}

/// A task of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskRow {
    /// The task.
    pub task: TaskId,
    /// The address in the cluster spec.
    pub address: String,
    /// The `host:port` at which the task can be observed, if it has sent one.
    pub http: Option<String>,
    /// Whether the chief can reach the task now.
    pub reachable: bool,
    /// The incarnations of the task that have connected.
    pub lives: u64,
}

/// The state of a worker, as the chief sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    /// It has never connected.
    #[default]
    Absent,
    /// It waits for the job, prepares, or waits for the others.
    Preparing,
    /// It trains.
    Training,
    /// Its connection is broken; it may return.
    Away,
    /// It has trained to the end.
    Finished,
    /// It evaluates for the job.
    Evaluating,
    /// It has announced its leave.
    Left,
    /// It was away for too long; the others continue without it.
    Lost,
}

impl WorkerState {
    /// All states.
    pub const ALL: [Self; 8] = [
        Self::Absent,
        Self::Preparing,
        Self::Training,
        Self::Away,
        Self::Finished,
        Self::Evaluating,
        Self::Left,
        Self::Lost,
    ];

    /// Returns the name in snapshots and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Preparing => "preparing",
            Self::Training => "training",
            Self::Away => "away",
            Self::Finished => "finished",
            Self::Evaluating => "evaluating",
            Self::Left => "left",
            Self::Lost => "lost",
        }
    }
}

/// A worker of the job. Its own figures are those of its last report; those of the last seconds are computed
/// from its reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerRow {
    /// The index.
    pub worker: u32,
    /// The state.
    pub state: WorkerState,
    /// The milliseconds since its last report; `None` before the first.
    pub reported_ms: Option<u64>,
    /// The steps taken in this incarnation.
    pub local_step: LocalStep,
    /// The loss of its last steps.
    pub loss: Option<f32>,
    /// The steps per second, over the last seconds.
    #[serde(deserialize_with = "crate::float::or_nan")]
    pub steps_per_s: f64,
    /// The examples per second, over the last seconds.
    #[serde(deserialize_with = "crate::float::or_nan")]
    pub examples_per_s: f64,
    /// The mean staleness of its pushes over the last seconds, in versions of their shard.
    pub staleness: Option<f64>,
    /// The microseconds of a typical step over the last seconds, by the name of the phase.
    pub phases_us: Vec<(String, u64)>,
    /// Its pushes by verdict, over all shards.
    pub verdicts: VerdictCounters,
    /// The steps whose gradients were dropped because they were not finite.
    pub skipped: u64,
    /// The connections to ps tasks that were re-established.
    pub reconnections: u64,
    /// The requests to ps tasks that were sent again.
    pub resends: u64,
}

/// The state of a shard, as the chief sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardState {
    /// It replies.
    #[default]
    Serving,
    /// Its task was told to stop, and waits for the chief to save.
    Leaving,
    /// It does not reply, although its connection is open.
    Silent,
    /// Its connection is broken; it may return.
    Unreachable,
    /// It has ended with the job.
    Ended,
}

impl ShardState {
    /// All states.
    pub const ALL: [Self; 5] = [Self::Serving, Self::Leaving, Self::Silent, Self::Unreachable, Self::Ended];

    /// Returns the name in snapshots and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Leaving => "leaving",
            Self::Silent => "silent",
            Self::Unreachable => "unreachable",
            Self::Ended => "ended",
        }
    }
}

/// A shard of the job. Its own figures are those of its last reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardRow {
    /// The shard.
    pub shard: ShardId,
    /// The state.
    pub state: ShardState,
    /// The milliseconds since its last reply.
    pub seen_ms: u64,
    /// The updates applied.
    pub version: Version,
    /// The updates per second, over the last seconds.
    #[serde(deserialize_with = "crate::float::or_nan")]
    pub updates_per_s: f64,
    /// The share of the last seconds in which it handled messages, from 0 to 1.
    #[serde(deserialize_with = "crate::float::or_nan")]
    pub busy: f64,
    /// The messages that wait in its mailbox.
    pub queue: u64,
    /// The mean time that a message waited there over the last seconds, in microseconds.
    pub waited_us: u64,
    /// The mean time that a message took to be handled over the last seconds, in microseconds.
    pub handling_us: u64,
    /// The typical time from push to reply over the last seconds, as its workers see it, in microseconds.
    pub round_trip_us: Option<u64>,
    /// The variables of which it has a slice.
    pub variables: u64,
    /// The slices owned.
    pub slices: u64,
    /// The bytes of the slices.
    pub bytes: u64,
    /// The bytes of slots, averages, and gradients that wait for others.
    pub more_bytes: u64,
    /// The pushes by verdict.
    pub pushes: ShardCounters,
    /// The pulls answered.
    pub pulls: u64,
    /// The mean staleness of all applied pushes, in versions.
    pub staleness: Option<f64>,
    /// The pulls that wait for their step to begin.
    pub waiting: u32,
}

/// The checkpoints of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoints {
    /// The location of the store.
    pub location: String,
    /// The checkpoints saved.
    pub saves: u64,
    /// The checkpoints that could not be saved.
    pub failed: u64,
    /// The newest committed checkpoint.
    pub last: Option<String>,
    /// The step of the newest committed checkpoint.
    pub last_step: Option<GlobalStep>,
    /// The milliseconds since it was committed, if that was in this run.
    pub age_ms: Option<u64>,
    /// The times from the order to save until the commit: that of the slowest shard and of the manifest.
    pub took: TimeHistogram,
}

/// A task or shard that delays the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The kind.
    pub kind: FindingKind,
    /// The name, such as `worker/2` or `ps/0/shard/1`.
    pub name: String,
    /// The observation, with numbers, for people.
    pub reason: String,
}

/// The kind of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// A worker whose steps take longer than the others'.
    SlowWorker,
    /// A shard that receives more than it can handle, or replies later than the others.
    OverloadedShard,
    /// A shard that does not reply.
    SilentShard,
}

impl FindingKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::SlowWorker, Self::OverloadedShard, Self::SilentShard];

    /// Returns the predicate that follows the name in a sentence.
    pub const fn says(self) -> &'static str {
        match self {
            Self::SlowWorker => "is slow",
            Self::OverloadedShard => "is overloaded",
            Self::SilentShard => "does not answer",
        }
    }

    /// Returns the name in snapshots and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SlowWorker => "slow_worker",
            Self::OverloadedShard => "overloaded_shard",
            Self::SilentShard => "silent_shard",
        }
    }
}

/// A point of the curves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// The time since the chief was started, in milliseconds.
    pub at_ms: u64,
    /// The updates applied.
    pub step: GlobalStep,
    /// The mean loss over the workers' steps since the previous point.
    pub loss: Option<f32>,
    /// The examples per second.
    #[serde(deserialize_with = "crate::float::or_nan")]
    pub examples_per_s: f64,
    /// The metrics of an evaluation since the previous point, if any; its `loss` is that of the test
    /// examples.
    pub evaluation: Vec<MetricValue>,
    /// The mean microseconds of a step over all workers since the previous point, by the name of the phase.
    pub phases_us: Vec<(String, u64)>,
}

/// A slice of a variable and its shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementRow {
    /// The variable.
    pub variable: String,
    /// The variable's shape, such as `784x512`.
    pub shape: String,
    /// The first row and the number of rows, along axis 0.
    pub rows: (u64, u64),
    /// The bytes of the slice.
    pub bytes: u64,
    /// The shard.
    pub shard: ShardId,
}
