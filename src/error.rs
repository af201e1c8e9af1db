//! The one error type of the library.

use std::process::ExitCode;

use pushpull_input::InputError;
use pushpull_messages::graph::GraphError;
use pushpull_messages::job::JobError;
use pushpull_worker::{FetchError, WorkerError};

/// An error of the library. Its text is one line that says what was expected, what was found, and what to do.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The graph is invalid.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A setting of the job is out of range.
    #[error(transparent)]
    Job(#[from] JobError),
    /// A hook requests a tensor that does not exist or cannot be fetched.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The data cannot be read, or do not fit the model.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The model's file cannot be read or written, or the model cannot be computed.
    #[error("{0}")]
    Model(String),
    /// The job was told to stop before its last step, and was saved.
    #[error("stopped at step {step} ({reason}); saved as {checkpoint}: train the same job again to resume")]
    Saved {
        /// The number of updates in the checkpoint.
        step: u64,
        /// The name of the checkpoint.
        checkpoint: String,
        /// The reason why the job stopped.
        reason: String,
    },
    /// A signal ended the job before its last step.
    #[error("{reason}")]
    Interrupted {
        /// A description of the work that was not finished.
        reason: String,
        /// The signal's number.
        number: u8,
    },
    /// The job failed.
    #[error("{0}")]
    Training(String),
    /// The cluster cannot be used, for example because its description is missing or invalid.
    #[error("{0}")]
    Cluster(String),
}

/// Shows the same text as `Display`, because a `main` that returns an error prints its `Debug` form.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Converts the error of a computation in this process, such as a prediction.
impl From<WorkerError> for Error {
    fn from(error: WorkerError) -> Self {
        match error {
            WorkerError::Input(error) => Self::Input(error),
            other => Self::model(other),
        }
    }
}

impl Error {
    /// Returns the exit status with which the role programs would end: 2 if the cluster or a setting is
    /// wrong, 128 + the signal's number after a signal, and 1 otherwise. A `main` that returns the error
    /// itself ends with 1.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Cluster(_) | Self::Graph(_) | Self::Job(_) | Self::Fetch(_) => ExitCode::from(2),
            Self::Interrupted { number, .. } => ExitCode::from(128 + number),
            Self::Input(_) | Self::Model(_) | Self::Saved { .. } | Self::Training(_) => ExitCode::FAILURE,
        }
    }

    /// Makes an error of a model's file or computation.
    pub(crate) fn model(error: impl std::fmt::Display) -> Self {
        Self::Model(error.to_string())
    }
}
