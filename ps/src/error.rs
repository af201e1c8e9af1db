//! The errors that end a ps task.

use pushpull_cuda::DriverError;
use pushpull_messages::id::{ShardId, TaskId};
use pushpull_messages::out_of_range::OutOfRange;

/// An error that ends a ps task before its job is complete.
#[derive(Debug, thiserror::Error)]
pub enum PsError {
    /// A setting is out of range.
    #[error(transparent)]
    Config(#[from] OutOfRange),
    /// The chief did not connect within the time limit.
    #[error(
        "{chief} at {address} did not connect within {seconds} s; check that it is running and has the same \
         cluster spec"
    )]
    NoChief {
        /// The task that hosts the chief.
        chief: TaskId,
        /// The chief's address.
        address: String,
        /// How long the task waited, in seconds.
        seconds: u64,
    },
    /// The chief left without ending the job, and then no peer was connected for the whole of
    /// `chief_lost_after` or `chief_lease`, whichever is longer.
    #[error("the chief left before it reported how the job ended, and no task is connected")]
    ChiefLost,
    /// The chief reported that the job failed.
    #[error("the job failed: {0}")]
    JobFailed(String),
    /// The task received a signal before the chief ended the job.
    #[error("interrupted before the job ended")]
    Interrupted,
    /// A shard panicked, which is a bug. The process must end, so that the job can recover.
    #[error("{shard} panicked: {reason}")]
    ShardPanicked {
        /// The shard that panicked.
        shard: ShardId,
        /// The panic's message.
        reason: String,
    },
    /// The device of a shard has failed, and with it the optimizers' slots are lost. The process must end, so
    /// that the job can recover.
    #[error("{shard} has lost the slots that were on its device: {error}")]
    DeviceFailed {
        /// The shard whose device has failed.
        shard: ShardId,
        /// The device's error.
        error: DriverError,
    },
}
