//! Why a ps task ended other than by the chief's word.

use pushpull_messages::id::{ShardId, TaskId};

/// Anything that ends a ps task early.
#[derive(Debug, thiserror::Error)]
pub enum PsError {
    /// A setting out of range.
    #[error("{key} must be {expected}, and is {got}")]
    Config {
        /// Which one.
        key: &'static str,
        /// What it may be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// The chief never came.
    #[error(
        "{chief} at {address} did not connect within {seconds} s: is it started, with the same cluster spec?"
    )]
    NoChief {
        /// Who hosts the chief.
        chief: TaskId,
        /// Where.
        address: String,
        /// How long was waited.
        seconds: u64,
    },
    /// The chief went without a word, and so did everybody else.
    #[error("the chief left before it said how the job ended, and no worker is connected any more")]
    ChiefLost,
    /// The chief says that the job failed.
    #[error("the job failed: {0}")]
    JobFailed(String),
    /// A signal came.
    #[error("interrupted before the job's end")]
    Interrupted,
    /// A bug of ours: the process must go, so that the job can recover.
    #[error("{shard} panicked: {reason}")]
    ShardPanicked {
        /// Which shard.
        shard: ShardId,
        /// The panic's message.
        reason: String,
    },
}
