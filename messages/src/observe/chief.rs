//! The snapshot of a job, as its chief sees it. It is the source of the status page, `pushpull top` and the
//! metrics.

use serde::{Deserialize, Serialize};

use super::ps::ServerSnapshot;
use super::times::TimeHistogram;
use super::worker::VerdictCounters;
use crate::id::{GlobalStep, LocalStep, ShardId, TaskId, Version};
use crate::message::{MetricValue, ShardCounters};

/// The state of a job, as its chief sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChiefSnapshot {
    /// A summary of the job.
    pub job: JobSummary,
    /// The phase of the job.
    pub phase: JobPhase,
    /// The reason why the job is stopping, has failed or ends early; otherwise `None`.
    pub reason: Option<String>,
    /// Whether the job has ended with an error.
    #[serde(default)]
    pub failed: bool,
    /// The time of the snapshot on the chief's clock, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The time since the chief was started, in milliseconds.
    pub up_ms: u64,
    /// The global step: the highest version of all shards.
    pub step: GlobalStep,
    /// The step at which the training will end.
    pub last_step: GlobalStep,
    /// The step at which this run of the job began; above 0 after a restore.
    pub began: GlobalStep,
    /// The number of times that the job has rolled back to a checkpoint under this run of the chief.
    #[serde(default)]
    pub rollbacks: u64,
    /// The mean, over the workers, of the last finite loss that each has reported. Workers that have left or
    /// are lost do not count.
    pub loss: Option<f32>,
    /// The metrics on the workers' last training batches, in the order of the graph; empty if they are
    /// unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<MetricValue>,
    /// The number of updates per second, over the last few seconds.
    #[serde(deserialize_with = "crate::float::or_nan")]
    pub steps_per_s: f64,
    /// The number of examples per second, over the last few seconds. An example counts when a worker has
    /// computed gradients for it.
    #[serde(deserialize_with = "crate::float::or_nan")]
    pub examples_per_s: f64,
    /// The step and the metrics, including the loss, of the last evaluation.
    pub evaluation: Option<(GlobalStep, Vec<MetricValue>)>,
    /// The tasks in the order of the cluster spec. Evaluators are omitted, because they do not connect to
    /// the chief. Workers that have announced that they leave are omitted, too.
    pub tasks: Vec<TaskRow>,
    /// All workers, in the order of their indices.
    pub workers: Vec<WorkerRow>,
    /// Every shard to which the chief has connected.
    pub shards: Vec<ShardRow>,
    /// The state of checkpoints, if the job saves any.
    pub checkpoints: Option<Checkpoints>,
    /// The tasks that are slow or silent, and why.
    pub findings: Vec<Finding>,
    /// Whether the chief accepts requests from users to save a checkpoint or to stop the job.
    pub accepts_wishes: bool,
    /// Whether other hosts may reach the chief without a proof of who they are.
    #[serde(default)]
    pub insecure: bool,
    /// The number of spans that were dropped from the timeline, if a timeline is written.
    pub spans_lost: u64,
    /// The connections that the chief has accepted; `None` in a snapshot that was not asked for, such as one
    /// for the status page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerSnapshot>,
}

/// A summary of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSummary {
    /// The graph's name.
    pub name: String,
    /// The synchronisation policy, written as on a command line.
    pub sync: String,
    /// The optimizer's name.
    pub optimizer: String,
    /// The number of examples in one worker's batch.
    pub batch_size: u32,
    /// The number of batches in one step of a worker; 0 if the chief does not report it.
    #[serde(default)]
    pub accumulate: u32,
    /// The number of variables.
    pub variables: u64,
    /// The size of all variables, in bytes.
    pub variable_bytes: u64,
}

/// The phase of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobPhase {
    /// The chief waits for tasks to connect and prepare.
    #[default]
    Starting,
    /// The workers train.
    Training,
    /// One worker evaluates the final variables.
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
    /// The address of the task in the cluster spec.
    pub address: String,
    /// The `host:port` of the HTTP endpoint at which the task can be observed, if the task has reported one.
    pub http: Option<String>,
    /// Whether the chief can reach the task now.
    pub reachable: bool,
    /// The number of incarnations of the task that have connected to the chief.
    pub lives: u64,
}

/// The state of a worker, as the chief sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    /// The worker has never connected.
    #[default]
    Absent,
    /// The worker waits for the job, prepares for it, or waits for the other workers.
    Preparing,
    /// The worker trains.
    Training,
    /// The worker's connection is broken, but the worker may still return.
    Away,
    /// The worker has finished its training.
    Finished,
    /// The worker evaluates the final variables.
    Evaluating,
    /// The worker has announced that it leaves.
    Left,
    /// The worker was away for too long, and the other workers continue without it.
    Lost,
}

impl WorkerState {
    /// All states of a worker.
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

    /// Returns the name that snapshots and metrics use.
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

/// A worker of the job. Its figures come from its last report; figures "over the last few seconds" are
/// computed from several reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerRow {
    /// The index of the worker task.
    pub worker: u32,
    /// The state of the worker.
    pub state: WorkerState,
    /// The time since the worker's last report, in milliseconds; `None` before the first report.
    pub reported_ms: Option<u64>,
    /// The number of steps that the worker has taken in its current incarnation.
    pub local_step: LocalStep,
    /// The mean loss over the worker's last steps.
    pub loss: Option<f32>,
    /// The number of steps per second, over the last few seconds.
    #[serde(deserialize_with = "crate::float::or_nan")]
    pub steps_per_s: f64,
    /// The number of examples per second, over the last few seconds.
    #[serde(deserialize_with = "crate::float::or_nan")]
    pub examples_per_s: f64,
    /// The mean staleness of the worker's pushes over the last few seconds, in versions of the shard that
    /// received them.
    pub staleness: Option<f64>,
    /// The phases of a typical step over the last few seconds: the name of each phase and its duration in
    /// microseconds.
    pub phases_us: Vec<(String, u64)>,
    /// For each verdict, the number of the worker's pushes that received it, over all shards.
    pub verdicts: VerdictCounters,
    /// The number of steps whose gradients were dropped because they were not finite.
    pub skipped: u64,
    /// The number of times that a broken connection to a ps task was re-established.
    pub reconnections: u64,
    /// The number of requests to ps tasks that were sent again.
    pub resends: u64,
}

/// The state of a shard, as the chief sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardState {
    /// The shard replies to the chief.
    #[default]
    Serving,
    /// The shard's task has received a signal to stop and waits for the chief to save a checkpoint.
    Leaving,
    /// The shard does not reply, although the connection to its task is open.
    Silent,
    /// The connection to the shard's task is broken, but the task may still return.
    Unreachable,
    /// The shard has ended together with the job.
    Ended,
}

impl ShardState {
    /// All states of a shard.
    pub const ALL: [Self; 5] = [Self::Serving, Self::Leaving, Self::Silent, Self::Unreachable, Self::Ended];

    /// Returns the name that snapshots and metrics use.
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

/// A shard of the job. Its figures come from its last reply to the chief.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardRow {
    /// The id of the shard.
    pub shard: ShardId,
    /// The state of the shard.
    pub state: ShardState,
    /// The time since the shard's last reply, in milliseconds.
    pub seen_ms: u64,
    /// The number of updates that have been applied.
    pub version: Version,
    /// The number of updates per second, over the last few seconds.
    #[serde(deserialize_with = "crate::float::or_nan")]
    pub updates_per_s: f64,
    /// The fraction of the last few seconds that the shard spent handling messages, from 0 to 1.
    #[serde(deserialize_with = "crate::float::or_nan")]
    pub busy: f64,
    /// The number of messages that wait in the shard's mailbox.
    pub queue: u64,
    /// The mean time that a message waited in the mailbox over the last few seconds, in microseconds.
    pub waited_us: u64,
    /// The mean time that the shard took to handle a message over the last few seconds, in microseconds.
    pub handling_us: u64,
    /// The typical time from a push to its reply over the last few seconds, as measured by the workers, in
    /// microseconds.
    pub round_trip_us: Option<u64>,
    /// The number of variables of which the shard owns a slice.
    pub variables: u64,
    /// The number of slices that the shard owns.
    pub slices: u64,
    /// The size of the slices, in bytes.
    pub bytes: u64,
    /// The size, in bytes, of the optimizer's slots, of the moving averages, and of held gradients. Held
    /// gradients wait for the gradients of other workers or for the learning rate.
    pub more_bytes: u64,
    /// The number of pushes that the shard received, and how many of them got each verdict.
    pub pushes: ShardCounters,
    /// The number of pulls answered.
    pub pulls: u64,
    /// The mean staleness of all pushes that were applied or held, in versions of this shard.
    pub staleness: Option<f64>,
    /// The number of workers that wait for this shard: for the values of a step that may not begin yet, or
    /// for an answer that the shard can give only when it has its learning rate.
    pub waiting: u32,
}

/// The state of a job's checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoints {
    /// The location of the checkpoint store.
    pub location: String,
    /// The number of checkpoints saved in this run.
    pub saves: u64,
    /// The number of checkpoints that could not be saved.
    pub failed: u64,
    /// The name of the newest committed checkpoint.
    pub last: Option<String>,
    /// The step of the newest committed checkpoint.
    pub last_step: Option<GlobalStep>,
    /// The time since the newest checkpoint was committed, in milliseconds, if it was committed in this run.
    pub age_ms: Option<u64>,
    /// The durations of saves. Each duration is the time that the slowest shard took to write its file, plus
    /// the time to commit the manifest.
    pub took: TimeHistogram,
}

/// A task or shard that delays other tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The kind of the finding.
    pub kind: FindingKind,
    /// The name of the task or shard, such as `worker/2` or `ps/0/shard/1`.
    pub name: String,
    /// A description of what was observed, with the measured values.
    pub reason: String,
}

/// The kind of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// A worker whose steps take longer than those of the other workers.
    SlowWorker,
    /// A shard that receives more messages than it can handle, or replies later than the other shards.
    OverloadedShard,
    /// A shard that does not reply.
    SilentShard,
}

impl FindingKind {
    /// All kinds of findings.
    pub const ALL: [Self; 3] = [Self::SlowWorker, Self::OverloadedShard, Self::SilentShard];

    /// Returns the text that follows the finding's name in a message, such as `is slow`.
    pub const fn says(self) -> &'static str {
        match self {
            Self::SlowWorker => "is slow",
            Self::OverloadedShard => "is overloaded",
            Self::SilentShard => "does not answer",
        }
    }

    /// Returns the name that snapshots and metrics use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SlowWorker => "slow_worker",
            Self::OverloadedShard => "overloaded_shard",
            Self::SilentShard => "silent_shard",
        }
    }
}

/// A point of the curves that the status page draws.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// The time since the chief was started, in milliseconds.
    pub at_ms: u64,
    /// The number of updates that have been applied.
    pub step: GlobalStep,
    /// The mean loss over the workers' steps since the previous point.
    pub loss: Option<f32>,
    /// The metrics on the training batches. The chief records the last known values every second; each
    /// metric is the mean of the values recorded since the previous point. A metric that no worker has
    /// reported is missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<MetricValue>,
    /// The number of examples per second.
    #[serde(deserialize_with = "crate::float::or_nan")]
    pub examples_per_s: f64,
    /// The metrics of an evaluation since the previous point; empty if there was none. The metric `loss` is
    /// the loss on the test examples.
    pub evaluation: Vec<MetricValue>,
    /// The phases of the steps since the previous point: the name of each phase and its mean duration over
    /// all workers, in microseconds.
    pub phases_us: Vec<(String, u64)>,
}

/// A slice of a variable, and the shard that owns it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementRow {
    /// The name of the variable.
    pub variable: String,
    /// The variable's shape, such as `784x512`.
    pub shape: String,
    /// The index of the first row of the slice along axis 0, and the number of rows in the slice.
    pub rows: (u64, u64),
    /// The size of the slice, in bytes.
    pub bytes: u64,
    /// The shard that owns the slice.
    pub shard: ShardId,
}
