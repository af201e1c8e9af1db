//! The whole input of a job, as data.
//! Knows neither the examples nor how they are read.

use serde::{Deserialize, Serialize};

use super::{COLUMNS_MAX, DatasetSpec, InputSpecError, MapSpec, RepeatSpec, ShardSpec, ShuffleSpec};

/// Batches that a worker keeps ready where nobody says otherwise.
pub const PREFETCH: u32 = 2;
/// Most batches that a worker keeps ready: more would hold memory and hide a slow input no better.
pub const PREFETCH_MAX: u32 = 64;

/// The examples to train on, and those to test on at the end.
///
/// Each worker shares, shuffles, repeats, maps, batches and prefetches, in this order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputSpec {
    /// Read again and again, shuffled by the job's seed, each worker its own part.
    pub train: DatasetSpec,
    /// Read once, in order, by one worker, when the training is over.
    pub test: DatasetSpec,
    /// How the training set is shared out.
    #[serde(default)]
    pub shard: ShardSpec,
    /// In which order each worker reads its part.
    #[serde(default)]
    pub shuffle: ShuffleSpec,
    /// How often.
    #[serde(default)]
    pub repeat: RepeatSpec,
    /// What happens to the columns of both sets.
    #[serde(default)]
    pub map: Vec<MapSpec>,
    /// Batches that a worker keeps ready.
    #[serde(default = "prefetch")]
    pub prefetch: u32,
}

fn prefetch() -> u32 {
    PREFETCH
}

impl InputSpec {
    /// Of these sets, read as is usual.
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

    /// Checks that it can travel, and what can be checked without its files.
    ///
    /// # Errors
    /// Names what is wrong.
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
