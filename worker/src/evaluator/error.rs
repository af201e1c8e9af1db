//! The errors that end an evaluator before the last checkpoint is evaluated. Wraps the errors of other
//! modules and does not interpret them.

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_storage::{FileError, StoreError};

use super::best::BestError;
use crate::error::WorkerError;

/// An error that ends an evaluator early, or that prevents it from reading a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum EvaluatorError {
    /// The model or its test set cannot be used.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The checkpoint store could not be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file of a checkpoint, or its manifest, cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A part of a checkpoint is missing.
    #[error("{0}")]
    NotWhole(String),
    /// The model lacks the metric by which the best checkpoint is chosen.
    #[error(transparent)]
    Best(#[from] BestError),
    /// The checkpoint of the job's last step cannot be read, and no checkpoint will follow it.
    #[error("{checkpoint}, the checkpoint of the job's last step, cannot be evaluated: {reason}")]
    Last {
        /// The name of the checkpoint.
        checkpoint: CheckpointName,
        /// The reason why the checkpoint cannot be evaluated.
        reason: String,
    },
    /// No checkpoint appeared within the idle timeout.
    #[error(
        "no checkpoint appeared in {location} within {seconds} s: check that this is the --checkpoint-dir of the job"
    )]
    Nothing {
        /// How long the evaluator waited, in seconds.
        seconds: u64,
        /// The directory or bucket that the evaluator watched.
        location: String,
    },
}

impl EvaluatorError {
    /// Returns true if the store failed. Another attempt may then succeed.
    pub(super) const fn is_outage(&self) -> bool {
        matches!(
            self,
            Self::Store(StoreError::Failed { .. } | StoreError::Directory { .. })
                | Self::File(FileError::Store(StoreError::Failed { .. } | StoreError::Directory { .. }))
        )
    }
}
