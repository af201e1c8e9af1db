//! Who reads which examples, in which order and how often, as data.
//! Knows no example.

use serde::{Deserialize, Serialize};

use super::InputSpecError;

/// How the training set is shared out among the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardSpec {
    /// By file where the number of files is a multiple of the number of workers, else by example.
    #[default]
    Auto,
    /// Each worker reads its own files only: those whose position is its index modulo the number of workers.
    File,
    /// Each worker reads all files, and keeps the examples whose position is its index modulo the number of workers.
    Data,
    /// Every worker trains on everything.
    Off,
}

/// In which order a worker reads its part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShuffleSpec {
    /// In an order that is drawn anew each epoch, every order equally likely.
    #[default]
    Full,
    /// Each time one of the next so many examples that have not been read yet, as through a buffer of that size: near
    /// ones stay near.
    Buffer(u32),
    /// As they lie.
    None,
}

/// How often a worker reads its part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepeatSpec {
    /// Until the job's last step.
    #[default]
    Endless,
    /// So many times; then its input ends. Examples that are left and fill no batch are not read. That the input ends
    /// before the job's last step is an error.
    Epochs(u64),
}

impl ShuffleSpec {
    pub(super) fn validate(self) -> Result<(), InputSpecError> {
        match self {
            Self::Buffer(0) => InputSpecError::range("the shuffle buffer", "at least 1 example", 0),
            _ => Ok(()),
        }
    }
}

impl RepeatSpec {
    pub(super) fn validate(self) -> Result<(), InputSpecError> {
        match self {
            Self::Epochs(0) => InputSpecError::range("the number of epochs", "at least 1", 0),
            _ => Ok(()),
        }
    }
}
