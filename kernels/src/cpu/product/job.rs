//! A product whose operands have the layout that the register tiles read. This module must not depend on the
//! source of the operands.

use std::ops::Range;

use pulp::Arch;

use super::FEW_ROWS;

/// The left-hand matrix or a part of it: `[rows, depth]`, or stored as `[depth, rows]` if `transposed` is
/// true.
#[derive(Clone, Copy)]
pub(super) struct Left<'a> {
    pub data: &'a [f32],
    pub transposed: bool,
    pub rows: usize,
    pub depth: usize,
    /// The index that the first row of the part has in the whole matrix.
    pub first_row: usize,
    pub first_term: usize,
}

impl Left<'_> {
    /// Copies a part of the matrix to `slot`, stored as `[terms, rows]` without gaps, and returns the copy.
    #[inline(always)]
    pub fn gather<'a>(&self, slot: &'a mut [f32], rows: &Range<usize>, terms: &Range<usize>) -> Left<'a> {
        debug_assert!(self.transposed);
        let slot = &mut slot[..rows.len() * terms.len()];
        for (slot, term) in slot.chunks_exact_mut(rows.len()).zip(terms.clone()) {
            let row = &self.data[term * self.rows..][rows.clone()];
            match (slot.first_chunk_mut::<FEW_ROWS>(), row.first_chunk()) {
                // If the compiler knows the length of the slices, it copies them without a function call.
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
    /// The matrix in the memory of the caller, `[depth, cols]`.
    InPlace { data: &'a [f32], cols: usize },
    /// The matrix in the layout that [`Source::pack`](super::pack::Source::pack) produces.
    Packed { data: &'a [f32], depth: usize },
}

/// The initial value of each element of the product, to which the terms are added.
#[derive(Clone, Copy)]
pub(super) enum Start<'a> {
    Zero,
    /// The bias of the element's column of `dst`.
    Bias(&'a [f32]),
    /// The old contents of the element in `dst`.
    Old,
}

/// The product `left · panels`. The result is stored transposed if `flipped` is true.
#[derive(Clone, Copy)]
pub(super) struct Job<'a> {
    pub left: Left<'a>,
    pub panels: Panels<'a>,
    pub start: Start<'a>,
    pub relu: bool,
    pub flipped: bool,
    /// The number of rows in a block of the left-hand matrix. Each block is multiplied by all panels, one
    /// after another.
    pub block_rows: usize,
    /// Whether each block of rows of the left-hand matrix is copied to scratch memory before it is read.
    /// This requires that the matrix is stored transposed.
    pub gathers: bool,
    /// The number of floats of scratch memory for each task.
    pub slot: usize,
    /// The instruction set to compute with.
    pub arch: Arch,
}
