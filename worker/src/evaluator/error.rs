//! Why an evaluator ended before the last checkpoint was evaluated.

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_storage::{FileError, StoreError};

use super::best::BestError;
use crate::error::WorkerError;

/// Anything that ends an evaluator early, or keeps it from reading a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum EvaluatorError {
    /// The model or its test set cannot be used.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The store says no.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A checkpoint's file cannot be read, or its manifest.
    #[error(transparent)]
    File(#[from] FileError),
    /// Something of a checkpoint is not there.
    #[error("{0}")]
    NotWhole(String),
    /// There is nothing to find the best by.
    #[error(transparent)]
    Best(#[from] BestError),
    /// Nothing to wait for is left, and it cannot be read.
    #[error("{checkpoint} is of the job's last step, and cannot be evaluated: {reason}")]
    Last {
        /// Which one.
        checkpoint: CheckpointName,
        /// Why not.
        reason: String,
    },
    /// No checkpoint ever came.
    #[error("no checkpoint came within {seconds} s: is {location} the job's directory of checkpoints?")]
    Nothing {
        /// So long.
        seconds: u64,
        /// Where.
        location: String,
    },
}
