//! A data set together with its map stages. It fills batches in the form that a graph expects. This module
//! must not depend on sharding, or on what a batch is used for.

use std::sync::Arc;

use pushpull_messages::input::{ColumnSpec, MapSpec};

use crate::random::SplitMix64;
use crate::stages::{Scratch, Stages};
use crate::{Column, InMemory, InputError, Pick};

/// A constant that separates the random streams of the stages from all other streams of the same seed.
const STREAM: u64 = 0x0053_5441_4745; // "STAGE"

/// A data set and its map stages. The result of a random stage depends only on the seed, the epoch and the
/// example. It is the same for any batch size and on any worker.
#[derive(Clone, Debug)]
pub struct Mapped {
    dataset: Arc<InMemory>,
    stages: Stages,
    /// The seed of the random stages; `None` if random stages are disabled.
    seed: Option<u64>,
}

impl Mapped {
    /// Creates a training set. Its stages may be random.
    ///
    /// # Errors
    /// [`InputError::Stage`] if a stage cannot be applied to its column; [`InputError::Class`] if an integer
    /// that is to be one-hot encoded is not the number of a class.
    pub fn training(
        dataset: impl Into<Arc<InMemory>>,
        map: &[MapSpec],
        seed: u64,
    ) -> Result<Self, InputError> {
        Self::new(dataset.into(), map, Some(seed))
    }

    /// Creates a test set. Its random stages are disabled.
    ///
    /// # Errors
    /// The same as those of [`training`](Self::training).
    pub fn testing(dataset: impl Into<Arc<InMemory>>, map: &[MapSpec]) -> Result<Self, InputError> {
        Self::new(dataset.into(), map, None)
    }

    fn new(dataset: Arc<InMemory>, map: &[MapSpec], seed: Option<u64>) -> Result<Self, InputError> {
        let stages = Stages::new(map, dataset.columns())?;
        stages.check(&dataset)?;
        Ok(Self { dataset, stages, seed })
    }

    /// Returns the number of examples; at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a data set is never empty")]
    pub fn len(&self) -> usize {
        self.dataset.len()
    }

    /// Returns the specs of the columns after the stages, in the order of a batch's columns.
    pub fn columns(&self) -> &[ColumnSpec] {
        self.stages.columns()
    }

    /// Replaces the contents of `columns` with the examples that `picks` names, in the order of `picks`.
    /// Allocates only if the capacity of `columns` or `scratch` does not suffice.
    pub(super) fn fill(&self, picks: &[Pick], columns: &mut Vec<Column>, scratch: &mut Scratch) {
        prepare(self.columns(), picks.len(), columns);
        for (position, column) in columns.iter_mut().enumerate() {
            let storage = self.dataset.storage_at(position);
            for (place, pick) in picks.iter().enumerate() {
                let random = self.seed.map(|seed| random(seed, pick.epoch, pick.example.into()));
                let from = (storage, pick.example as usize);
                self.stages.fill(position, from, random, (&mut *column, place), scratch);
            }
        }
    }
}

/// Gives `columns` the types and sizes of a batch of `examples` examples. Their contents are then undefined.
/// Allocates only if the capacity of `columns` does not suffice.
pub(super) fn prepare(specs: &[ColumnSpec], examples: usize, columns: &mut Vec<Column>) {
    columns.truncate(specs.len());
    for (position, spec) in specs.iter().enumerate() {
        if columns.len() == position {
            columns.push(Column::F32(Vec::new()));
        }
        columns[position].resize(spec.example.dtype, examples * spec.example.shape.elements());
    }
}

/// Returns the generator of the random numbers that the stages use for one example in one epoch.
pub(super) fn random(seed: u64, epoch: u64, example: u64) -> SplitMix64 {
    SplitMix64::stream(&[STREAM, seed, epoch, example])
}

#[cfg(test)]
mod tests;
