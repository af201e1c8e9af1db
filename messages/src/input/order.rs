//! Sharding, shuffling and repetition of the training set, as data.
//! Knows no examples.

use serde::{Deserialize, Serialize};

use super::InputSpecError;

/// The sharding of the training set among the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardSpec {
    /// By file if the number of files is a multiple of the number of workers, else by example.
    #[default]
    Auto,
    /// By file: each worker reads only the files whose position is its index modulo the number of workers.
    File,
    /// By example: each worker reads all files and keeps the examples whose position is its index modulo the
    /// number of workers.
    Data,
    /// Not at all: every worker trains on all examples.
    Off,
}

/// The order in which a worker reads its share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShuffleSpec {
    /// A new order each epoch, all orders being equally likely.
    #[default]
    Full,
    /// An order drawn through a buffer of this many examples; neighbours stay close to each other.
    Buffer(u32),
    /// The order of the data set.
    None,
}

/// The number of times that a worker reads its share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepeatSpec {
    /// Until the job's last step.
    #[default]
    Endless,
    /// A fixed number of times, at the end of which the input ends. The last examples are not read if they do
    /// not fill a batch. It is an error if the input ends before the job's last step.
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
