//! The spec of a job's input. The crate `pushpull-input` reads the examples.

use serde::{Deserialize, Serialize};

use super::{COLUMNS_MAX, DatasetSpec, InputSpecError, MapSpec, RepeatSpec, ShardSpec, ShuffleSpec};

/// The default number of batches that a worker prefetches.
pub const PREFETCH: u32 = 2;
/// The maximum number of batches that a worker prefetches. A greater number would use more memory and would
/// not hide a slow input any better.
pub const PREFETCH_MAX: u32 = 64;

/// The training set and the test set of a job.
///
/// Each worker applies these stages in this order: sharding, shuffling, repetition, map stages, batching and
/// prefetching.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputSpec {
    /// The training set. Each worker reads its own part of the set, shuffled with the job's seed. `repeat`
    /// sets how many times the worker reads it.
    pub train: DatasetSpec,
    /// The test set, which one worker reads once, in order, after training.
    pub test: DatasetSpec,
    /// How the training set is divided among the workers.
    #[serde(default)]
    pub shard: ShardSpec,
    /// The order in which each worker reads its part of the training set.
    #[serde(default)]
    pub shuffle: ShuffleSpec,
    /// How many times each worker reads its part of the training set.
    #[serde(default)]
    pub repeat: RepeatSpec,
    /// The map stages, which apply to the training set and the test set.
    #[serde(default)]
    pub map: Vec<MapSpec>,
    /// The number of batches that a worker prefetches, that is, keeps ready for the next steps.
    #[serde(default = "prefetch")]
    pub prefetch: u32,
}

fn prefetch() -> u32 {
    PREFETCH
}

impl InputSpec {
    /// Makes an input of this training set and this test set, with default settings.
    pub fn new(train: DatasetSpec, test: DatasetSpec) -> Self {
        Self {
            train,
            test,
            shard: ShardSpec::default(),
            shuffle: ShuffleSpec::default(),
            repeat: RepeatSpec::default(),
            map: Vec::new(),
            prefetch: PREFETCH,
        }
    }

    /// Checks everything about the spec that can be checked without reading files, including whether
    /// messages can carry it.
    ///
    /// # Errors
    /// Returns the first fault found.
    pub fn validate(&self) -> Result<(), InputSpecError> {
        self.train.validate()?;
        self.test.validate()?;
        self.shuffle.validate()?;
        self.repeat.validate()?;
        if self.map.len() > COLUMNS_MAX {
            return InputSpecError::range(
                "the number of map stages",
                format!("at most {COLUMNS_MAX}"),
                self.map.len(),
            );
        }
        self.map.iter().try_for_each(MapSpec::validate)?;
        match self.prefetch {
            1..=PREFETCH_MAX => Ok(()),
            got => InputSpecError::range("prefetch", format!("1 to {PREFETCH_MAX}"), got),
        }
    }
}
