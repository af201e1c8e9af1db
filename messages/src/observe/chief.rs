//! A whole job as its chief sees it: what the page, `pushpull top` and metrics show.

use serde::{Deserialize, Serialize};

use super::times::TimeHistogram;
use super::worker::VerdictCounters;
use crate::id::{GlobalStep, LocalStep, ShardId, TaskId, Version};
use crate::message::{MetricValue, ShardCounters};

/// The state of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChiefSnapshot {
    /// What is trained, and how.
    pub job: JobSummary,
    /// Where it is in its life.
    pub phase: JobPhase,
    /// Why it stops, failed, or was told to end early.
    pub reason: Option<String>,
    /// Whether it has ended by that, with an error.
    #[serde(default)]
    pub failed: bool,
    /// Milliseconds since the epoch at which this was true, by the chief's clock.
    pub at_ms: u64,
    /// Since the chief was started, in milliseconds.
    pub up_ms: u64,
    /// Updates of the shard that is furthest.
    pub step: GlobalStep,
    /// The step at which the training ends.
    pub last_step: GlobalStep,
    /// Where this run began.
    pub began: GlobalStep,
    /// Mean over the workers' last steps.
    pub loss: Option<f32>,
    /// Updates per second, over the last seconds.
    #[serde(deserialize_with = "crate::float::or_nan")]
    pub steps_per_s: f64,
    /// Examples per second that workers have computed gradients of, over the last seconds.
    #[serde(deserialize_with = "crate::float::or_nan")]
    pub examples_per_s: f64,
    /// The last evaluation: its step and its metrics, the loss among them.
    pub evaluation: Option<(GlobalStep, Vec<MetricValue>)>,
    /// Every task of the cluster that should be there, in its order: without evaluators, of which the chief knows nothing, and without
    /// workers that have left by their own word.
    pub tasks: Vec<TaskRow>,
    /// Every worker, by its index.
    pub workers: Vec<WorkerRow>,
    /// Every shard that has been reached.
    pub shards: Vec<ShardRow>,
    /// Checkpoints, where they are made.
    pub checkpoints: Option<Checkpoints>,
    /// Who is slow, and why it is thought so.
    pub findings: Vec<Finding>,
    /// Whether a person may have it save or stop.
    pub accepts_wishes: bool,
    /// Spans of the timeline that were left out, where one is written.
    pub spans_lost: u64,
}

/// What is trained, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSummary {
    /// The graph's name.
    pub name: String,
    /// How gradients meet, as on a command line.
    pub sync: String,
    /// The optimizer's name.
    pub optimizer: String,
    /// Examples in one worker's batch.
    pub batch_size: u32,
    /// Variables.
    pub variables: u64,
    /// Their bytes.
    pub variable_bytes: u64,
}

/// Where a job is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobPhase {
    /// Waiting for tasks.
    #[default]
    Starting,
    /// The workers train.
    Training,
    /// One worker evaluates.
    Evaluating,
    /// It cannot go on.
    Failing,
    /// It is over.
    Ended,
}

/// A task of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskRow {
    /// Which.
    pub task: TaskId,
    /// In the cluster spec.
    pub address: String,
    /// Where it can be observed itself, as `host:port`, if it said so.
    pub http: Option<String>,
    /// Whether the chief can reach it now.
    pub reachable: bool,
    /// Lives of it that have come.
    pub lives: u64,
}

/// What a worker is at, as the chief knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    /// Has never come.
    #[default]
    Absent,
    /// Waits to be told the job, prepares, or waits for the others.
    Preparing,
    /// Trains.
    Training,
    /// Its connection is broken; it may come back.
    Away,
    /// Has trained to the end.
    Finished,
    /// Evaluates for all.
    Evaluating,
    /// Has left, by its own word.
    Left,
    /// Was away for too long: the others go on without it.
    Lost,
}

impl WorkerState {
    /// All of them.
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

    /// The word that stands for it.
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

/// A worker of the job. What it says of itself is as it reported last; what is of the last seconds is reckoned from reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerRow {
    /// Its index.
    pub worker: u32,
    /// What it is at.
    pub state: WorkerState,
    /// Milliseconds since it reported last; `None` before that.
    pub reported_ms: Option<u64>,
    /// Steps that it has taken in this life.
    pub local_step: LocalStep,
    /// Of its last steps.
    pub loss: Option<f32>,
    /// Steps per second, over the last seconds.
    #[serde(deserialize_with = "crate::float::or_nan")]
    pub steps_per_s: f64,
    /// Examples per second, over the last seconds.
    #[serde(deserialize_with = "crate::float::or_nan")]
    pub examples_per_s: f64,
    /// Mean staleness of its pushes over the last seconds, in versions of their shard.
    pub staleness: Option<f64>,
    /// Where its time went over the last seconds: microseconds of a typical one of its steps, by the name of the phase.
    pub phases_us: Vec<(String, u64)>,
    /// What became of its pushes, all shards together.
    pub verdicts: VerdictCounters,
    /// Steps whose gradients were dropped because they were not finite.
    pub skipped: u64,
    /// Connections to ps tasks that were found again.
    pub reconnections: u64,
    /// Requests to ps tasks that were made again.
    pub resends: u64,
}

/// What a shard is at, as the chief knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardState {
    /// Answers.
    #[default]
    Serving,
    /// Its task was told to stop, and waits for the chief to save.
    Leaving,
    /// Does not answer, though its connection stands.
    Silent,
    /// Its connection is broken; it may come back.
    Unreachable,
    /// Has ended with the job.
    Ended,
}

impl ShardState {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Serving, Self::Leaving, Self::Silent, Self::Unreachable, Self::Ended];

    /// The word that stands for it.
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

/// A shard of the job. What it says of itself is as it answered last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardRow {
    /// Which.
    pub shard: ShardId,
    /// What it is at.
    pub state: ShardState,
    /// Milliseconds since it answered last.
    pub seen_ms: u64,
    /// Updates applied.
    pub version: Version,
    /// Updates per second, over the last seconds.
    #[serde(deserialize_with = "crate::float::or_nan")]
    pub updates_per_s: f64,
    /// The share of the last seconds in which it handled messages: 0 to 1.
    #[serde(deserialize_with = "crate::float::or_nan")]
    pub busy: f64,
    /// Messages that wait in its mailbox.
    pub queue: u64,
    /// How long a message waited there, over the last seconds: the mean, in microseconds.
    pub waited_us: u64,
    /// The same of handling.
    pub handling_us: u64,
    /// From push to answer as its workers see it, over the last seconds: what is typical, in microseconds.
    pub round_trip_us: Option<u64>,
    /// Variables of which it has a slice.
    pub variables: u64,
    /// Slices owned.
    pub slices: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of what the optimizer and averages keep beside them, and of gradients that wait for others.
    pub more_bytes: u64,
    /// What became of every push.
    pub pushes: ShardCounters,
    /// Pulls answered.
    pub pulls: u64,
    /// Mean staleness of all pushes that are in the variables, in versions.
    pub staleness: Option<f64>,
    /// Pulls that wait for their step to begin.
    pub waiting: u32,
}

/// The checkpoints of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoints {
    /// Where.
    pub location: String,
    /// Made.
    pub saves: u64,
    /// That could not be made.
    pub failed: u64,
    /// The newest that is whole.
    pub last: Option<String>,
    /// Its step.
    pub last_step: Option<GlobalStep>,
    /// Milliseconds since it was complete, where that was in this run.
    pub age_ms: Option<u64>,
    /// How long each took from the order until it was whole: as long as the slowest shard, and the list of its parts.
    pub took: TimeHistogram,
}

/// Somebody who holds up the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What it is.
    pub kind: FindingKind,
    /// Who: `worker/2`, `ps/0/shard/1`.
    pub name: String,
    /// For people: what was seen, with numbers.
    pub reason: String,
}

/// What somebody is found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// A worker that takes longer for its steps than the others.
    SlowWorker,
    /// A shard that has more to do than it can, or answers later than the others.
    OverloadedShard,
    /// A shard that does not answer.
    SilentShard,
}

impl FindingKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::SlowWorker, Self::OverloadedShard, Self::SilentShard];

    /// What is said of whoever it is.
    pub const fn says(self) -> &'static str {
        match self {
            Self::SlowWorker => "is slow",
            Self::OverloadedShard => "is overloaded",
            Self::SilentShard => "does not answer",
        }
    }

    /// The word that stands for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SlowWorker => "slow_worker",
            Self::OverloadedShard => "overloaded_shard",
            Self::SilentShard => "silent_shard",
        }
    }
}

/// One point of the curves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Since the chief was started, in milliseconds.
    pub at_ms: u64,
    /// Updates.
    pub step: GlobalStep,
    /// Mean over the workers' steps since the point before.
    pub loss: Option<f32>,
    /// Examples per second.
    #[serde(deserialize_with = "crate::float::or_nan")]
    pub examples_per_s: f64,
    /// Metrics of an evaluation, where one was made since the point before; `loss` is the test examples'.
    pub evaluation: Vec<MetricValue>,
    /// Where a worker's step went, on the mean over all workers since the point before: microseconds, by the name of the phase.
    pub phases_us: Vec<(String, u64)>,
}

/// A slice of a variable, and where it lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementRow {
    /// The variable.
    pub variable: String,
    /// Its shape, such as `784x512`.
    pub shape: String,
    /// First row and number of rows, along axis 0.
    pub rows: (u64, u64),
    /// Bytes of the slice.
    pub bytes: u64,
    /// Where.
    pub shard: ShardId,
}
