//! How the training set is divided among workers, shuffled and repeated.

use serde::{Deserialize, Serialize};

use super::InputSpecError;

/// How the examples of the training set are divided among the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardSpec {
    /// Divides by file if the number of files is a multiple of the number of workers, else by example.
    #[default]
    Auto,
    /// Divides by file: worker w of n reads only the files whose position in the list is w modulo n.
    File,
    /// Divides by example: worker w of n reads all files and uses the examples whose position is w modulo n.
    Data,
    /// Does not divide: every worker trains on all examples.
    Off,
}

/// The order in which a worker reads its share of the examples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShuffleSpec {
    /// A new random order in each epoch, in which all orders are equally likely.
    #[default]
    Full,
    /// A random order that a shuffle buffer of this number of examples produces. Examples that are close in
    /// the data set stay fairly close.
    Buffer(u32),
    /// The order of the data set, without shuffling.
    None,
}

/// How many times a worker reads its share of the examples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepeatSpec {
    /// The worker reads its share again and again until the job's last step.
    #[default]
    Endless,
    /// The worker reads its share this number of times, after which its input ends. The last examples are not
    /// read if they do not fill a batch. It is an error if the input ends before the job's last step.
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
