//! A batch of examples, ready for training or testing. This module must not depend on the origin of its
//! examples or on the use of the batch.

use crate::stages::Scratch;
use crate::{Column, Mapped, Pick, Position};

/// A batch of examples, laid out as the inputs of a graph expect them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// The columns, in the order of [`Mapped::columns`].
    pub columns: Vec<Column>,
    /// The number of examples.
    pub examples: usize,
    /// The position of the sampler after this batch. Save this position after the training on this batch.
    /// `None` if no sampler chose the batch.
    pub resume_at: Option<Position>,
}

impl Batch {
    /// Fills this batch with the examples that `picks` names. Allocates only if the previous contents were
    /// smaller.
    pub(super) fn set(
        &mut self,
        mapped: &Mapped,
        picks: &[Pick],
        resume_at: Option<Position>,
        scratch: &mut Scratch,
    ) {
        mapped.fill(picks, &mut self.columns, scratch);
        self.examples = picks.len();
        self.resume_at = resume_at;
    }
}
