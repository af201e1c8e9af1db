//! What is known of a job while it runs, and when it has ended.

use std::time::Duration;

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::id::{GlobalStep, ShardId, TaskId};
use pushpull_messages::message::{Evaluation, ShardSnapshot};

/// A job in the middle of its run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobProgress {
    /// Whether the workers train.
    pub running: bool,
    /// How many updates have been applied, as far as the workers have told.
    pub global_step: GlobalStep,
    /// How many there will be, where nobody stops the job before.
    pub last_step: GlobalStep,
    /// Gradients that make an update together.
    pub gradients_per_update: u32,
    /// The mean of what the workers told last; `None` before the first report.
    pub loss: Option<f32>,
    /// Workers that train.
    pub workers: usize,
    /// Workers that have not come, while the job has not begun.
    pub missing: Vec<TaskId>,
    /// Checkpoints that were made.
    pub saves: u64,
    /// Checkpoints that could not be made.
    pub saves_failed: u64,
    /// The newest that is whole.
    pub last_checkpoint: Option<CheckpointName>,
}

/// How a job ended well.
#[derive(Clone, Debug)]
pub enum JobEnd {
    /// It trained to its end, or to where somebody wanted it to stop, and was evaluated.
    Completed(JobReport),
    /// It was told to stop before its end, and another job can go on from where it was.
    Saved {
        /// The updates that are in the checkpoint.
        step: GlobalStep,
        /// Which one.
        checkpoint: CheckpointName,
        /// Why it stopped.
        reason: String,
    },
}

/// A job that trained to its end.
#[derive(Clone, Debug)]
pub struct JobReport {
    /// From the word to begin until the last worker had finished.
    pub training: Duration,
    /// The updates that are in the variables, those of a checkpoint included; the same on every shard.
    pub steps: GlobalStep,
    /// Why it stopped before the job's last step, if it did.
    pub stopped: Option<String>,
    /// Updates that this run has applied; the same on every shard.
    pub updates_applied: u64,
    /// Gradients that are in these, as the first shard counts them: several may make one update.
    pub gradients: u64,
    /// Steps that workers dropped because their gradients were not finite.
    pub skipped: u64,
    /// The mean over every worker's last steps.
    pub train_loss: f32,
    /// The test examples at the final variables.
    pub evaluation: Evaluation,
    /// Every shard as it was at the end.
    pub shards: Vec<(ShardId, ShardSnapshot)>,
    /// Workers whose losses are in `train_loss`.
    pub workers: usize,
    /// Checkpoints that were made.
    pub saves: u64,
    /// Checkpoints that could not be made.
    pub saves_failed: u64,
    /// The newest that is whole.
    pub last_checkpoint: Option<CheckpointName>,
}
