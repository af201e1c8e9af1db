//! What the workers read, as data: which records, not how they are read.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A set of examples: images and their labels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum DatasetSpec {
    /// Images and labels in the IDX format, each plain or gzipped, pixels scaled to 0..1.
    Idx {
        /// The file of images, `u8`, 3 axes.
        images: PathBuf,
        /// The file of labels, `u8`, 1 axis.
        labels: PathBuf,
    },
    /// Digits that are drawn on the spot, 28×28, 10 classes: the same examples for the same seed.
    Digits {
        /// What they are drawn from.
        seed: u64,
        /// How many there are.
        examples: u64,
    },
}

/// The examples to train on, and those to test on at the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputSpec {
    /// Read again and again, shuffled by the job's seed, each worker its own part.
    pub train: DatasetSpec,
    /// Read once, in order, by one worker, when the training is over.
    pub test: DatasetSpec,
}
