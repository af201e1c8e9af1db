//! A product whose operands lie as the register tiles read them. It must not know where they come from.

use std::ops::Range;

use pulp::Arch;

use super::FEW_ROWS;

/// The left matrix or a part of it, `[rows, depth]`, or with `transposed` stored `[depth, rows]`.
#[derive(Clone, Copy)]
pub(super) struct Left<'a> {
    pub data: &'a [f32],
    pub transposed: bool,
    pub rows: usize,
    pub depth: usize,
    /// The start of the part.
    pub first_row: usize,
    pub first_term: usize,
}

impl Left<'_> {
    /// Returns a copy of a part in `slot`, side by side.
    #[inline(always)]
    pub fn gather<'a>(&self, slot: &'a mut [f32], rows: &Range<usize>, terms: &Range<usize>) -> Left<'a> {
        debug_assert!(self.transposed);
        let slot = &mut slot[..rows.len() * terms.len()];
        for (slot, term) in slot.chunks_exact_mut(rows.len()).zip(terms.clone()) {
            let row = &self.data[term * self.rows..][rows.clone()];
            match (slot.first_chunk_mut::<FEW_ROWS>(), row.first_chunk()) {
                // Of known length, which is copied without a call.
                (Some(slot), Some(row)) => *slot = *row,
                _ => slot.copy_from_slice(row),
            }
        }
        let (first_row, first_term) = (rows.start, terms.start);
        Left { data: slot, transposed: true, rows: rows.len(), depth: terms.len(), first_row, first_term }
    }
}

/// The right matrix.
#[derive(Clone, Copy)]
pub(super) enum Panels<'a> {
    /// `[depth, cols]`.
    InPlace { data: &'a [f32], cols: usize },
    /// As [`Source::pack`](super::pack::Source::pack) leaves it.
    Packed { data: &'a [f32], depth: usize },
}

/// The start of an element's chain of additions.
#[derive(Clone, Copy)]
pub(super) enum Start<'a> {
    Zero,
    /// The bias of the column of `dst`.
    Bias(&'a [f32]),
    /// The contents of `dst`.
    Old,
}

/// `left · panels`, to be stored as it is or `flipped`.
#[derive(Clone, Copy)]
pub(super) struct Job<'a> {
    pub left: Left<'a>,
    pub panels: Panels<'a>,
    pub start: Start<'a>,
    pub relu: bool,
    pub flipped: bool,
    /// The rows of the left matrix that are multiplied with one panel after the other.
    pub block_rows: usize,
    /// Whether rows of a left matrix that is stored transposed are copied side by side first.
    pub gathers: bool,
    /// The floats of scratch of each task.
    pub slot: usize,
    /// The instruction set to compute with.
    pub arch: Arch,
}
