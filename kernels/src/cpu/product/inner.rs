//! The product itself, once its operands lie as the register tiles read them. It must not know where they come
//! from.

// Iterators over a tile keep it in memory instead of registers.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::region::Region;
use super::turn::{Target, transpose};
use super::{DEPTH, FEW_ROWS, FLIP_ROWS, PANEL};
use crate::cpu::tile::{Columns, ROWS, for_columns, load, multiply, multiply_transposed, rectify, store};

/// The left matrix or a part of it, `[rows, depth]`, or with `transposed` stored `[depth, rows]`.
#[derive(Clone, Copy)]
pub(super) struct Left<'a> {
    pub data: &'a [f32],
    pub transposed: bool,
    pub rows: usize,
    pub depth: usize,
    /// Where the part starts.
    pub first_row: usize,
    pub first_term: usize,
}

impl Left<'_> {
    /// A copy of a part in `slot`, side by side.
    #[inline(always)]
    fn gather<'a>(&self, slot: &'a mut [f32], rows: &Range<usize>, terms: &Range<usize>) -> Left<'a> {
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

/// What an element's chain of additions starts from.
#[derive(Clone, Copy)]
pub(super) enum Start<'a> {
    Zero,
    /// The bias of the column of `dst`.
    Bias(&'a [f32]),
    /// What `dst` holds.
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
    /// How many rows meet one panel after the other.
    pub block_rows: usize,
    /// Whether rows of a left matrix that is stored transposed are copied side by side first.
    pub gathers: bool,
    /// Floats of scratch for each task.
    pub slot: usize,
    /// What to compute it with.
    pub arch: Arch,
}

impl Job<'_> {
    /// The terms of a sum, some at a time.
    #[inline(always)]
    fn passes(&self) -> impl Iterator<Item = Range<usize>> {
        let depth = self.left.depth;
        // Of about equal length. One of nothing, if there are no terms.
        let step = depth.div_ceil(((depth + DEPTH / 2) / DEPTH).max(1)).max(1);
        (0..depth.max(1)).step_by(step).map(move |from| from..depth.min(from + step))
    }

    /// Computes the rows `rows` and columns `cols`, to `dst`, which has just those (flipped: as columns and
    /// rows), as so many tasks; `slots` has [`Job::slot`] floats for each.
    pub fn share(
        &self,
        dst: Region<'_>,
        rows: Range<usize>,
        cols: Range<usize>,
        slots: &mut [f32],
        tasks: usize,
    ) {
        let (tiles, panels) = (rows.len().div_ceil(ROWS), cols.len().div_ceil(PANEL));
        if tasks < 2 || (tiles < 2 && panels < 2) {
            return self.arch.dispatch(Part { job: self, dst, rows, cols, slot: slots });
        }
        let by_cols = panels >= 2 && (cols.len() > rows.len() || tiles < 2);
        let (mid_row, mid_col) = match by_cols {
            true => (rows.end, cols.start + panels / 2 * PANEL),
            false => (rows.start + tiles / 2 * ROWS, cols.end),
        };
        let at = if by_cols { mid_col - cols.start } else { mid_row - rows.start };
        let (first, second) = if by_cols == self.flipped { dst.split_rows(at) } else { dst.split_cols(at) };
        let (second_rows, second_cols) =
            if by_cols { (rows.clone(), mid_col..cols.end) } else { (mid_row..rows.end, cols.clone()) };
        let half = tasks / 2;
        let (slots, second_slots) = slots.split_at_mut(half * self.slot);
        rayon::join(
            || self.share(first, rows.start..mid_row, cols.start..mid_col, slots, half),
            || self.share(second, second_rows, second_cols, second_slots, tasks - half),
        );
    }
}

/// A region from a place on.
struct Corner<'a, 'r> {
    dst: &'a mut Region<'r>,
    row: usize,
    col: usize,
}

impl Target for Corner<'_, '_> {
    #[inline(always)]
    fn part(&mut self, row: usize, from: usize, len: usize) -> &mut [f32] {
        &mut self.dst.row(self.row + row)[self.col + from..][..len]
    }
}

/// One task.
struct Part<'a> {
    job: &'a Job<'a>,
    dst: Region<'a>,
    rows: Range<usize>,
    cols: Range<usize>,
    slot: &'a mut [f32],
}

impl WithSimd for Part<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { job, mut dst, rows, cols, slot } = self;
        let panel_at = |col: usize| col..cols.end.min(col + PANEL);
        if job.flipped {
            for (col, row) in flips(&rows, &cols) {
                let (cols_here, rows_here) = (panel_at(col), row..rows.end.min(row + FLIP_ROWS));
                let (width, height) = (cols_here.len(), rows_here.len());
                let (at, to) = (col - cols.start, row - rows.start);
                let tile = &mut slot[..height * width];
                if let Start::Old = job.start {
                    for c in 0..width {
                        let dst = &dst.row(at + c)[to..to + height];
                        dst.iter().enumerate().for_each(|(r, &x)| tile[r * width + c] = x);
                    }
                }
                let mut region = Region::new(tile, height, width);
                for terms in job.passes() {
                    let left = job.left;
                    let (rows, cols) = (rows_here.clone(), cols_here.clone());
                    simd.vectorize(Pass { job, left, terms, rows, first: row, cols, dst: &mut region, at: 0 });
                }
                transpose(
                    simd,
                    &mut Corner { dst: &mut dst, row: at, col: to },
                    (tile, width),
                    height,
                    width,
                );
            }
            return;
        }
        for row in rows.clone().step_by(job.block_rows) {
            let rows = row..rows.end.min(row + job.block_rows);
            let (mut block, rest) = dst.split_rows(rows.len());
            dst = rest;
            for terms in job.passes() {
                let left = if job.gathers { job.left.gather(slot, &rows, &terms) } else { job.left };
                for col in cols.clone().step_by(PANEL) {
                    let (rows, terms, cols_here) = (rows.clone(), terms.clone(), panel_at(col));
                    let (dst, at) = (&mut block, col - cols.start);
                    simd.vectorize(Pass { job, left, terms, rows, first: row, cols: cols_here, dst, at });
                }
            }
        }
    }
}

/// Where the parts of a flipped product start that are stored at once: columns and rows.
#[inline(always)]
fn flips(rows: &Range<usize>, cols: &Range<usize>) -> impl Iterator<Item = (usize, usize)> {
    cols.clone().step_by(PANEL).flat_map(|col| rows.clone().step_by(FLIP_ROWS).map(move |row| (col, row)))
}

/// Some terms of the sums of some rows of one panel. It is dispatched by itself, so that its tiles, which are most of
/// the code, are compiled once for each instruction set.
struct Pass<'a, 'r> {
    job: &'a Job<'a>,
    left: Left<'a>,
    terms: Range<usize>,
    rows: Range<usize>,
    /// The row that the first row of the destination is.
    first: usize,
    cols: Range<usize>,
    /// The destination, of which the columns from `at` on are written.
    dst: &'a mut Region<'r>,
    at: usize,
}

impl WithSimd for Pass<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        for row in self.rows.clone().step_by(ROWS) {
            // As few tiles as can be, all but the last as high as the registers allow.
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
            // Not `from_fn`, which the compiler does not always inline.
            let mut left = Along::<P>([&[]; P]);
            for p in 0..P {
                left.0[p] = &data[(row + p) * depth..][terms.clone()];
            }
            let mut work = Tile::<_, P> { dst, row: row_at, at, left, right, stride, from, start, relu };
            for_columns(simd, cols.len(), &mut work);
        }
    }
}

/// As [`Start`], for one tile.
enum TileStart<'a, const P: usize> {
    Zero,
    Old,
    Rows([f32; P]),
    Cols(&'a [f32]),
}

/// `P` rows of the left matrix.
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

/// Each is a slice.
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

/// They are neighbours in the rows of a matrix that is stored transposed.
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

/// `P` rows of a panel's part of the product.
struct Tile<'a, 'r, L, const P: usize> {
    dst: &'a mut Region<'r>,
    /// Where it lies in `dst`.
    row: usize,
    at: usize,
    left: L,
    /// Rows of the panel, `stride` apart, the panel being their columns from `from` on.
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
