//! One batch, ready to be trained or tested on.
//! Knows neither where its examples came from nor what becomes of it.

use super::stages::Room;
use super::{Column, Mapped, Pick, Position};

/// Some examples, laid out as a graph's inputs want them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// As [`Mapped::columns`] says, in the same order.
    pub columns: Vec<Column>,
    /// How many examples there are.
    pub examples: usize,
    /// Where the sampler goes on after this batch: save it once the batch has been trained on. `None` where no
    /// sampler chose the batch.
    pub resume_at: Option<Position>,
}

impl Batch {
    /// Makes this the batch of these examples. Allocates only where the last batch was smaller.
    pub(super) fn set(
        &mut self,
        mapped: &Mapped,
        picks: &[Pick],
        resume_at: Option<Position>,
        room: &mut Room,
    ) {
        mapped.fill(picks, &mut self.columns, room);
        self.examples = picks.len();
        self.resume_at = resume_at;
    }
}
