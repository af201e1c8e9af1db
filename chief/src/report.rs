//! The progress of a running job, and the report of a job that has ended. Data only.

use std::collections::BTreeMap;
use std::time::Duration;

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::id::{GlobalStep, ShardId, TaskId};
use pushpull_messages::input::FilesDigest;
use pushpull_messages::message::{Evaluation, MetricValue, ShardSnapshot};

/// The progress of a running job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobProgress {
    /// Whether the workers are training at the moment.
    pub running: bool,
    /// The number of updates that had been applied when this run of the chief began or continued the job, or
    /// when the job last rolled back.
    pub began: GlobalStep,
    /// The number of updates applied so far, according to what the workers have reported.
    pub global_step: GlobalStep,
    /// The number of updates at which the training ends. An early stop lowers this number.
    pub last_step: GlobalStep,
    /// The number of gradients that are combined into one update.
    pub gradients_per_update: u32,
    /// The mean of the losses that the present workers have last reported; `None` before the first report.
    pub loss: Option<f32>,
    /// The graph's metrics on the workers' training batches, in the order of the graph. A metric is the mean
    /// of the values that the present workers have last reported. A metric that no worker has reported is
    /// missing.
    pub metrics: Vec<MetricValue>,
    /// The number of workers that train.
    pub workers: usize,
    /// The workers that have not registered yet or are disconnected; empty once the job has begun.
    pub missing: Vec<TaskId>,
    /// The number of workers that have trained under an earlier run of the chief, and wait until this run
    /// leads the job; 0 once it does.
    pub rejoining: usize,
    /// Whether the trained job was evaluated, and its last step is being saved. If a ps task loses its
    /// variables now, the job rolls back. Always false if the job cannot roll back.
    pub settling: bool,
    /// The number of checkpoints that were made.
    pub saves: u64,
    /// The number of checkpoints that could not be made.
    pub saves_failed: u64,
    /// The newest valid checkpoint.
    pub last_checkpoint: Option<CheckpointName>,
    /// The digest of the training files of each worker that reads files, by the worker's index.
    pub inputs: BTreeMap<u32, FilesDigest>,
}

/// A successful end of a job.
#[derive(Clone, Debug)]
pub enum JobEnd {
    /// The job trained to its end, or to the step at which it was stopped, and was evaluated.
    Completed(JobReport),
    /// The job was told to stop before its end, and another job can continue from its checkpoint.
    Saved {
        /// The number of updates that the checkpoint includes.
        step: GlobalStep,
        /// The checkpoint from which another job can continue.
        checkpoint: CheckpointName,
        /// The reason why the job stopped.
        reason: String,
    },
}

/// The report of a job that trained to its end.
#[derive(Clone, Debug)]
pub struct JobReport {
    /// The time from the moment when the workers begin to train until the last worker has finished.
    pub training: Duration,
    /// The number of updates that were applied to the variables, including those in a restored checkpoint;
    /// the same on every shard.
    pub steps: GlobalStep,
    /// The reason why the job stopped before its last step, if it did.
    pub stopped: Option<String>,
    /// The number of updates in `steps` without those in a restored checkpoint; the same on every shard.
    pub updates_applied: u64,
    /// The number of these updates that were applied during `training`. If a later run of the chief has
    /// continued the job, this number is less than `updates_applied`, because `training` is only the time
    /// that this later run has measured.
    pub updates_timed: u64,
    /// The number of gradients that were combined into the updates of `updates_applied`, counted by the first
    /// shard. An update may combine several gradients.
    pub gradients: u64,
    /// The number of steps that workers dropped because their gradients were not finite.
    pub skipped: u64,
    /// The number of times that the job has rolled back to a checkpoint, because a ps task had lost its
    /// variables. Only rollbacks under this run of the chief count.
    pub rollbacks: u64,
    /// The unweighted mean of the last losses of the workers that stayed to the end; NaN if none of them has
    /// a finite loss. Workers that left or were lost do not count.
    pub train_loss: f32,
    /// The evaluation of the final variables on the test examples.
    pub evaluation: Evaluation,
    /// The final snapshot of every shard.
    pub shards: Vec<(ShardId, ShardSnapshot)>,
    /// The number of workers whose losses are in `train_loss`.
    pub workers: usize,
    /// The number of checkpoints that were made.
    pub saves: u64,
    /// The number of checkpoints that could not be made.
    pub saves_failed: u64,
    /// The newest valid checkpoint.
    pub last_checkpoint: Option<CheckpointName>,
    /// The reason why the last step was not saved; `None` if it was saved, or if the job makes no
    /// checkpoints.
    pub unsaved: Option<String>,
}
