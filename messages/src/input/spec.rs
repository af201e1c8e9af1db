//! The spec of a job's input. The crate `pushpull-input` reads the examples.

use serde::{Deserialize, Serialize};

use super::{
    COLUMNS_MAX, DatasetSpec, InputSpecError, MapSpec, RepeatSpec, ShardSpec, ShuffleSpec, StreamSpec,
};

/// The default number of batches that a worker prefetches.
pub const PREFETCH: u32 = 2;
/// The maximum number of batches that a worker prefetches. A greater number would use more memory and would
/// not hide a slow input any better.
pub const PREFETCH_MAX: u32 = 64;

/// The maximum number of files that a worker reads at a time.
pub const INTERLEAVE_MAX: u32 = 64;
/// The maximum number of damaged records that a worker may skip. The worker remembers the place of each of
/// them, so their number must be bounded.
pub const SKIPPED_RECORDS_MAX: u64 = 1 << 20;

/// The training set and the test set of a job.
///
/// Each worker applies these stages in this order: sharding, shuffling, repetition, map stages, batching and
/// prefetching.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputSpec {
    /// The training set. Each worker reads its own part of the set, shuffled with the job's seed. `repeat`
    /// sets how many times the worker reads its part.
    pub train: DatasetSpec,
    /// The test set. Each evaluation reads it once, in order.
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
    /// Whether a worker reads the training set from the files again in each epoch, or holds it in memory.
    #[serde(default, skip_serializing_if = "is_default")]
    pub stream: StreamSpec,
    /// The number of files that a worker reads at a time. The worker takes one example from each of these
    /// files in round-robin order. With 1, it reads one file after the other.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub interleave: u32,
    /// The maximum number of damaged records of the training set that each worker skips and logs. If a
    /// worker finds one more, the job fails.
    #[serde(default, skip_serializing_if = "is_default")]
    pub skip_bad_records: u64,
    /// Whether a worker continues from a checkpoint although the names or sizes of its training files have
    /// changed since then. The worker then skips as many examples of the new files as it had read from the
    /// old files.
    #[serde(default, skip_serializing_if = "is_default")]
    pub accept_changed_files: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

const fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_one(value: &u32) -> bool {
    *value == 1
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
            stream: StreamSpec::default(),
            interleave: 1,
            skip_bad_records: 0,
            accept_changed_files: false,
        }
    }

    /// Checks everything about the spec that can be checked without reading files, including whether it can
    /// be encoded in a message.
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
        if !(1..=INTERLEAVE_MAX).contains(&self.interleave) {
            return InputSpecError::range("interleave", format!("1 to {INTERLEAVE_MAX}"), self.interleave);
        }
        if self.skip_bad_records > SKIPPED_RECORDS_MAX {
            let expected = format!("at most {SKIPPED_RECORDS_MAX}");
            return InputSpecError::range("skip_bad_records", expected, self.skip_bad_records);
        }
        if self.stream == StreamSpec::Always && self.shuffle == ShuffleSpec::Full {
            let expected = "a shuffle buffer or none, because a full shuffle needs all examples in memory";
            return InputSpecError::range("shuffle of a streamed training set", expected, "full");
        }
        match self.prefetch {
            1..=PREFETCH_MAX => Ok(()),
            got => InputSpecError::range("prefetch", format!("1 to {PREFETCH_MAX}"), got),
        }
    }
}
