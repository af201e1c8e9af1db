//! What is known of a job while it runs, and when it has ended. Data only.

use std::time::Duration;

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::id::{GlobalStep, ShardId, TaskId};
use pushpull_messages::message::{Evaluation, ShardSnapshot};

/// The progress of a running job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobProgress {
    /// Whether the workers train.
    pub running: bool,
    /// The updates applied so far, as far as the workers have reported.
    pub global_step: GlobalStep,
    /// The updates at the end, unless the job is stopped early.
    pub last_step: GlobalStep,
    /// The gradients that make an update together.
    pub gradients_per_update: u32,
    /// The mean of the last losses of the present workers; `None` before the first report.
    pub loss: Option<f32>,
    /// The number of workers that train.
    pub workers: usize,
    /// The workers that are missing, while the job has not begun.
    pub missing: Vec<TaskId>,
    /// The checkpoints that were made.
    pub saves: u64,
    /// The checkpoints that could not be made.
    pub saves_failed: u64,
    /// The newest valid checkpoint.
    pub last_checkpoint: Option<CheckpointName>,
}

/// A good end of a job.
#[derive(Clone, Debug)]
pub enum JobEnd {
    /// The job trained to its end, or to where it was stopped, and was evaluated.
    Completed(JobReport),
    /// The job was told to stop before its end, and another one can go on from there.
    Saved {
        /// The updates that are in the checkpoint.
        step: GlobalStep,
        /// The checkpoint to go on from.
        checkpoint: CheckpointName,
        /// Why the job stopped.
        reason: String,
    },
}

/// The report of a job that trained to its end.
#[derive(Clone, Debug)]
pub struct JobReport {
    /// The time from when the workers were told to begin until the last one had finished.
    pub training: Duration,
    /// The updates that are in the variables, those of a checkpoint included; the same on every shard.
    pub steps: GlobalStep,
    /// Why the job stopped before its last step, if it did.
    pub stopped: Option<String>,
    /// The updates that this run has applied; the same on every shard.
    pub updates_applied: u64,
    /// The gradients in these updates, as the first shard counts them; several may make one update.
    pub gradients: u64,
    /// The steps that workers dropped because their gradients were not finite.
    pub skipped: u64,
    /// The mean of the last losses of the workers that stayed to the end, each weighted equally; NaN where
    /// none of them has a finite loss. Workers that left or were lost do not count.
    pub train_loss: f32,
    /// The evaluation of the final variables on the test examples.
    pub evaluation: Evaluation,
    /// Every shard at the end.
    pub shards: Vec<(ShardId, ShardSnapshot)>,
    /// The number of workers whose losses are in `train_loss`.
    pub workers: usize,
    /// The checkpoints that were made.
    pub saves: u64,
    /// The checkpoints that could not be made.
    pub saves_failed: u64,
    /// The newest valid checkpoint.
    pub last_checkpoint: Option<CheckpointName>,
}
