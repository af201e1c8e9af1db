//! A data set as a graph gets it: behind its map stages.
//! Knows neither who reads which example nor what a batch is for.

use std::sync::Arc;

use pushpull_messages::input::{ColumnSpec, MapSpec};

use super::random::SplitMix64;
use super::stages::{Room, Stages};
use super::{Column, Dataset, InputError, Pick};

/// Sets the stages' random streams apart from all others of the same seed.
const STREAM: u64 = 0x0053_5441_4745; // "STAGE"

/// Examples, and what happens to them on their way into a batch. What is random depends on the seed, the epoch and the
/// example only: batches are the same however they are cut and whoever fills them.
#[derive(Clone, Debug)]
pub struct Mapped {
    dataset: Arc<Dataset>,
    stages: Stages,
    /// What random stages draw from; `None` where nothing is to be random.
    seed: Option<u64>,
}

impl Mapped {
    /// A training set.
    ///
    /// # Errors
    /// [`InputError::Stage`] for a stage that does not fit its column; [`InputError::Class`] for an example whose
    /// integers have no place in a one-hot column.
    pub fn training(
        dataset: impl Into<Arc<Dataset>>,
        map: &[MapSpec],
        seed: u64,
    ) -> Result<Self, InputError> {
        Self::new(dataset.into(), map, Some(seed))
    }

    /// A test set: nothing is random.
    ///
    /// # Errors
    /// As [`training`](Self::training).
    pub fn testing(dataset: impl Into<Arc<Dataset>>, map: &[MapSpec]) -> Result<Self, InputError> {
        Self::new(dataset.into(), map, None)
    }

    fn new(dataset: Arc<Dataset>, map: &[MapSpec], seed: Option<u64>) -> Result<Self, InputError> {
        let stages = Stages::new(map, dataset.columns())?;
        stages.check(&dataset)?;
        Ok(Self { dataset, stages, seed })
    }

    /// How many examples there are; at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a data set is never empty")]
    pub fn len(&self) -> usize {
        self.dataset.len()
    }

    /// What every example has when it comes out, in the order of a batch's columns.
    pub fn columns(&self) -> &[ColumnSpec] {
        self.stages.columns()
    }

    /// Writes these examples, in the order asked for, one column each. Allocates only what `columns` and `room` have
    /// no room for.
    pub(super) fn fill(&self, picks: &[Pick], columns: &mut Vec<Column>, room: &mut Room) {
        columns.truncate(self.columns().len());
        for (position, spec) in self.columns().iter().enumerate() {
            let elements = spec.example.shape.elements();
            if columns.len() == position {
                columns.push(Column::F32(Vec::new()));
            }
            columns[position].resize(spec.example.dtype, picks.len() * elements);
            match &mut columns[position] {
                Column::F32(rows) => {
                    for (pick, row) in picks.iter().zip(rows.chunks_exact_mut(elements)) {
                        let random = self
                            .seed
                            .map(|seed| SplitMix64::stream(&[STREAM, seed, pick.epoch, pick.example.into()]));
                        self.stages.fill_f32(&self.dataset, position, pick.example, random, row, room);
                    }
                }
                Column::I32(rows) => {
                    let storage = self.dataset.storage_at(position);
                    for (pick, row) in picks.iter().zip(rows.chunks_exact_mut(elements)) {
                        storage.fill_i32(pick.example, row);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
