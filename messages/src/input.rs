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

/// A path that no message can carry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} is not UTF-8, and a job's paths must be", .0.display())]
pub struct InputSpecError(PathBuf);

impl InputSpec {
    /// Checks that it can travel.
    ///
    /// # Errors
    /// Names the path that cannot.
    pub fn validate(&self) -> Result<(), InputSpecError> {
        for dataset in [&self.train, &self.test] {
            let DatasetSpec::Idx { images, labels } = dataset else { continue };
            if let Some(path) = [images, labels].into_iter().find(|path| path.to_str().is_none()) {
                return Err(InputSpecError(path.clone()));
            }
        }
        Ok(())
    }
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
