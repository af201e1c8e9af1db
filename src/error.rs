//! The one error type of the library.

use pushpull_input::InputError;
use pushpull_messages::graph::GraphError;
use pushpull_messages::job::JobError;
use pushpull_messages::optimizer::OptimizerError;

/// An error of the library. Its text is one line that says what was expected, what was found, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The graph is invalid.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A setting of the job is out of range.
    #[error(transparent)]
    Job(#[from] JobError),
    /// A setting of the optimizer is out of range.
    #[error(transparent)]
    Optimizer(#[from] OptimizerError),
    /// The data cannot be read, or do not fit the model.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The model's file cannot be read or written, or the model cannot be computed.
    #[error("{0}")]
    Model(String),
    /// The job failed, or was stopped before its last step and saved.
    #[error("{0}")]
    Training(String),
    /// The cluster cannot be used, for example because its description is missing or invalid.
    #[error("{0}")]
    Cluster(String),
}

impl Error {
    /// Makes an error of a model's file or computation.
    pub(crate) fn model(error: impl std::fmt::Display) -> Self {
        Self::Model(error.to_string())
    }
}
