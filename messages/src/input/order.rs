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
    /// Divides by file: worker w of n reads only the files whose position p in the list of files satisfies p
    /// mod n = w.
    File,
    /// Divides by example: worker w of n reads all files, and uses only the examples whose position p in the
    /// data set satisfies p mod n = w.
    Data,
    /// Does not divide: every worker trains on all examples.
    Off,
}

/// The order in which a worker reads its part of the examples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShuffleSpec {
    /// A new random order in each epoch. All orders are equally likely.
    #[default]
    Full,
    /// The random order that results from a shuffle buffer. The value is the number of examples in the
    /// buffer. Examples that are close in the data set stay fairly close.
    Buffer(u32),
    /// The order of the data set, without shuffling.
    None,
}

/// How many times a worker reads its part of the examples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepeatSpec {
    /// The worker reads its part again and again until the job's last step.
    #[default]
    Endless,
    /// The worker reads its part this number of times; then its input ends. The last examples are not used
    /// if they do not fill a batch. If the input ends before the job's last step, the worker leaves the
    /// membership; see [`LeaveSpec`](crate::sync::LeaveSpec). The job fails if the inputs of all workers end
    /// before the last step.
    Epochs(u64),
}

/// Whether a worker reads its examples from their files in each epoch, or holds them in memory. The batches
/// are the same in both cases. Texts and generated sets are always held in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamSpec {
    /// Reads the examples in each epoch if the files of the data set have more than 128 MiB and the shuffling
    /// is not [`ShuffleSpec::Full`]; otherwise, holds the examples in memory.
    #[default]
    Auto,
    /// Reads the examples in each epoch. Only the shuffle buffer and the prefetched batches are in memory.
    Always,
    /// Holds the examples in memory, at most 4 GiB.
    Never,
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
