//! A product whose operands are laid out as the register tiles read them. It must not depend on where they
//! come from.

use std::ops::Range;

use pulp::Arch;

use super::FEW_ROWS;

/// The left-hand matrix or a part of it, `[rows, depth]`; with `transposed` it is stored as `[depth, rows]`.
#[derive(Clone, Copy)]
pub(super) struct Left<'a> {
    pub data: &'a [f32],
    pub transposed: bool,
    pub rows: usize,
    pub depth: usize,
    /// The first row of the whole matrix that is in the part.
    pub first_row: usize,
    pub first_term: usize,
}

impl Left<'_> {
    /// Copies a part of the matrix to `slot`, where its rows are side by side, and returns that copy.
    #[inline(always)]
    pub fn gather<'a>(&self, slot: &'a mut [f32], rows: &Range<usize>, terms: &Range<usize>) -> Left<'a> {
        debug_assert!(self.transposed);
        let slot = &mut slot[..rows.len() * terms.len()];
        for (slot, term) in slot.chunks_exact_mut(rows.len()).zip(terms.clone()) {
            let row = &self.data[term * self.rows..][rows.clone()];
            match (slot.first_chunk_mut::<FEW_ROWS>(), row.first_chunk()) {
                // Slices of a length that is known to the compiler are copied without a function call.
                (Some(slot), Some(row)) => *slot = *row,
                _ => slot.copy_from_slice(row),
            }
        }
        let (first_row, first_term) = (rows.start, terms.start);
        Left { data: slot, transposed: true, rows: rows.len(), depth: terms.len(), first_row, first_term }
    }
}

/// The right-hand matrix.
#[derive(Clone, Copy)]
pub(super) enum Panels<'a> {
    /// The matrix as the caller stores it, `[depth, cols]`.
    InPlace { data: &'a [f32], cols: usize },
    /// The matrix in the layout that [`Source::pack`](super::pack::Source::pack) produces.
    Packed { data: &'a [f32], depth: usize },
}

/// The number with which an element's chain of additions starts.
#[derive(Clone, Copy)]
pub(super) enum Start<'a> {
    Zero,
    /// The bias of the element's column of `dst`.
    Bias(&'a [f32]),
    /// The old contents of the element in `dst`.
    Old,
}

/// The product `left · panels`, whose result is stored as it is or, if `flipped`, transposed.
#[derive(Clone, Copy)]
pub(super) struct Job<'a> {
    pub left: Left<'a>,
    pub panels: Panels<'a>,
    pub start: Start<'a>,
    pub relu: bool,
    pub flipped: bool,
    /// The number of rows of the left-hand matrix that are multiplied with one panel after the other.
    pub block_rows: usize,
    /// Whether the left-hand matrix is stored transposed and its rows are copied side by side first.
    pub gathers: bool,
    /// The number of floats of scratch of each task.
    pub slot: usize,
    /// The instruction set to compute with.
    pub arch: Arch,
}
