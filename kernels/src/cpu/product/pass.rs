//! Adds some of the terms of a product to some rows of one panel of the result, tile by tile. This module
//! must not depend on the source of the operands.

// With iterators, the compiler would keep a tile in memory instead of registers.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::job::{Job, Left, Panels, Start};
use super::region::Region;
use crate::cpu::tile::{Columns, ROWS, for_columns, load, multiply, multiply_transposed, rectify, store};

/// A pass over some rows of one panel of the result: adds the terms whose indices are in `terms`. Each pass
/// is dispatched to the instruction set separately. The code of the tiles, which is most of the code, is
/// therefore compiled once for each instruction set, and not again for each caller of a pass.
pub(super) struct Pass<'a, 'r> {
    pub job: &'a Job<'a>,
    pub left: Left<'a>,
    pub terms: Range<usize>,
    pub rows: Range<usize>,
    /// The row of the result that is the first row of `dst`.
    pub first: usize,
    pub cols: Range<usize>,
    /// The destination. The first column that is written has the index `at`.
    pub dst: &'a mut Region<'r>,
    pub at: usize,
}

impl WithSimd for Pass<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        for row in self.rows.clone().step_by(ROWS) {
            // To use as few tiles as possible, all tiles except the last have as many rows as the registers
            // allow.
            match self.rows.end - row {
                1 => self.tile::<S, 1>(simd, row),
                2 => self.tile::<S, 2>(simd, row),
                3 => self.tile::<S, 3>(simd, row),
                4 => self.tile::<S, 4>(simd, row),
                5 => self.tile::<S, 5>(simd, row),
                _ => self.tile::<S, ROWS>(simd, row),
            }
        }
    }
}

impl Pass<'_, '_> {
    #[inline(always)]
    fn tile<S: Simd, const P: usize>(&mut self, simd: S, row: usize) {
        let Self { job, left, ref terms, ref cols, ref mut dst, at, .. } = *self;
        let dst = &mut **dst;
        let (right, stride, from) = match job.panels {
            Panels::InPlace { data, cols: stride } => {
                (&data[terms.start * stride..terms.end * stride], stride, cols.start)
            }
            Panels::Packed { data, depth } => {
                let panel = &data[cols.start * depth..][..cols.len() * depth];
                (&panel[terms.start * cols.len()..terms.end * cols.len()], cols.len(), 0)
            }
        };
        let start = match job.start {
            _ if terms.start > 0 => TileStart::Old,
            Start::Zero => TileStart::Zero,
            Start::Old => TileStart::Old,
            Start::Bias(bias) if job.flipped => {
                TileStart::Rows(*bias[row..].first_chunk().expect("a bias for each row"))
            }
            Start::Bias(bias) => TileStart::Cols(&bias[cols.clone()]),
        };
        let relu = job.relu && terms.end == job.left.depth;
        let row_at = row - self.first;
        let Left { data, transposed, rows: height, depth, first_row, first_term } = left;
        let (row, terms) = (row - first_row, terms.start - first_term..terms.end - first_term);
        if transposed {
            let left =
                Across { data: &data[terms.start * height..terms.end * height], stride: height, at: row };
            let mut work = Tile::<_, P> { dst, row: row_at, at, left, right, stride, from, start, relu };
            for_columns(simd, cols.len(), &mut work);
        } else {
            // `from_fn` is not used, since the compiler does not always inline it.
            let mut left = Along::<P>([&[]; P]);
            for p in 0..P {
                left.0[p] = &data[(row + p) * depth..][terms.clone()];
            }
            let mut work = Tile::<_, P> { dst, row: row_at, at, left, right, stride, from, start, relu };
            for_columns(simd, cols.len(), &mut work);
        }
    }
}

/// The values to which a pass adds the terms of one tile. In the first pass, they are the values of
/// [`Start`]; in later passes, they are the sums that earlier passes have stored.
enum TileStart<'a, const P: usize> {
    Zero,
    Old,
    Rows([f32; P]),
    Cols(&'a [f32]),
}

/// `P` rows of the left-hand matrix.
trait Rows<const P: usize> {
    fn multiply<S: Simd, const V: usize, const PARTIAL: bool>(
        &self,
        simd: S,
        tile: &mut [[S::f32s; V]; P],
        right: &[f32],
        stride: usize,
        columns: (usize, usize),
    );
}

/// `P` rows of a matrix that is not stored transposed; each row is a slice.
struct Along<'a, const P: usize>([&'a [f32]; P]);

impl<const P: usize> Rows<P> for Along<'_, P> {
    #[inline(always)]
    fn multiply<S: Simd, const V: usize, const PARTIAL: bool>(
        &self,
        simd: S,
        tile: &mut [[S::f32s; V]; P],
        right: &[f32],
        stride: usize,
        columns: (usize, usize),
    ) {
        multiply::<S, P, V, PARTIAL>(simd, tile, self.0, right, stride, columns);
    }
}

/// `P` rows of a matrix that is stored transposed: each stored row holds one element of each of these `P`
/// rows, side by side.
struct Across<'a> {
    data: &'a [f32],
    stride: usize,
    at: usize,
}

impl<const P: usize> Rows<P> for Across<'_> {
    #[inline(always)]
    fn multiply<S: Simd, const V: usize, const PARTIAL: bool>(
        &self,
        simd: S,
        tile: &mut [[S::f32s; V]; P],
        right: &[f32],
        stride: usize,
        columns: (usize, usize),
    ) {
        let left = (self.data, self.stride, self.at);
        multiply_transposed::<S, P, V, PARTIAL>(simd, tile, left, right, stride, columns);
    }
}

/// The computation of `P` rows of one panel of the result.
struct Tile<'a, 'r, L, const P: usize> {
    dst: &'a mut Region<'r>,
    /// The index in `dst` of the tile's first row.
    row: usize,
    at: usize,
    left: L,
    /// The rows of the right-hand matrix; their starts are `stride` elements apart. The panel begins at the
    /// column `from`.
    right: &'a [f32],
    stride: usize,
    from: usize,
    start: TileStart<'a, P>,
    relu: bool,
}

impl<S: Simd, L: Rows<P>, const P: usize> Columns<S> for Tile<'_, '_, L, P> {
    #[inline(always)]
    fn run<const V: usize, const PARTIAL: bool>(&mut self, simd: S, col: usize, len: usize) {
        let at = self.at + col;
        let mut tile = [[simd.splat_f32s(0.0); V]; P];
        match self.start {
            TileStart::Zero => {}
            TileStart::Old => {
                for p in 0..P {
                    tile[p] = load::<S, V, PARTIAL>(simd, &self.dst.row(self.row + p)[at..at + len]);
                }
            }
            TileStart::Rows(bias) => {
                for p in 0..P {
                    tile[p] = [simd.splat_f32s(bias[p]); V];
                }
            }
            TileStart::Cols(bias) => tile = [load::<S, V, PARTIAL>(simd, &bias[col..col + len]); P],
        }
        let columns = (self.from + col, len);
        self.left.multiply::<S, V, PARTIAL>(simd, &mut tile, self.right, self.stride, columns);
        if self.relu {
            rectify(simd, &mut tile);
        }
        for p in 0..P {
            store::<S, V, PARTIAL>(simd, &mut self.dst.row(self.row + p)[at..at + len], tile[p]);
        }
    }
}
