//! The input of a job as data.
//! Knows neither the examples nor how they are read.

use serde::{Deserialize, Serialize};

use super::{COLUMNS_MAX, DatasetSpec, InputSpecError, MapSpec, RepeatSpec, ShardSpec, ShuffleSpec};

/// The default number of batches that a worker keeps ready.
pub const PREFETCH: u32 = 2;
/// The maximum number of batches that a worker keeps ready: more would take memory without hiding a slow
/// input any better.
pub const PREFETCH_MAX: u32 = 64;

/// The training set and the test set of a job.
///
/// Each worker shards, shuffles, repeats, maps, batches and prefetches, in this order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputSpec {
    /// The training set, which each worker reads repeatedly, its own share, shuffled by the job's seed.
    pub train: DatasetSpec,
    /// The test set, which one worker reads once, in order, after the training.
    pub test: DatasetSpec,
    /// The sharding of the training set.
    #[serde(default)]
    pub shard: ShardSpec,
    /// The order in which each worker reads its share.
    #[serde(default)]
    pub shuffle: ShuffleSpec,
    /// The number of times that each worker reads its share.
    #[serde(default)]
    pub repeat: RepeatSpec,
    /// The map stages of both sets.
    #[serde(default)]
    pub map: Vec<MapSpec>,
    /// The number of batches that a worker keeps ready.
    #[serde(default = "prefetch")]
    pub prefetch: u32,
}

fn prefetch() -> u32 {
    PREFETCH
}

impl InputSpec {
    /// Makes an input of these sets with default settings.
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

    /// Checks that the spec can be sent, and everything else that can be checked without reading files.
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
