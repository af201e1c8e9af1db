//! The division of a product into tasks, and of each task into passes. Each pass adds a range of the terms.
//! This module must not depend on the tiles.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::job::{Job, Start};
use super::pass::Pass;
use super::region::Region;
use super::transpose::{Target, transpose};
use super::{DEPTH, FLIP_ROWS, PANEL};
use crate::cpu::tile::ROWS;

impl Job<'_> {
    /// Divides the terms of each sum of the product into ranges, and returns the ranges. The terms of a
    /// range are added in one pass.
    #[inline(always)]
    fn passes(&self) -> impl Iterator<Item = Range<usize>> {
        let depth = self.left.depth;
        // The ranges have about equal length. If there are no terms, there is one empty range.
        let step = depth.div_ceil(((depth + DEPTH / 2) / DEPTH).max(1)).max(1);
        (0..depth.max(1)).step_by(step).map(move |from| from..depth.min(from + step))
    }

    /// Computes the rows `rows` and columns `cols` of the product in `tasks` tasks. `dst` holds exactly this
    /// part of the product; if the product is flipped, `dst` holds it transposed. `slots` has [`Job::slot`]
    /// floats for each task.
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

/// The part of the region `dst` that begins at the row `row` and the column `col`.
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

/// The part of a product that one task computes.
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
                    simd.vectorize(Pass {
                        job,
                        left,
                        terms,
                        rows,
                        first: row,
                        cols,
                        dst: &mut region,
                        at: 0,
                    });
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

/// Returns the first column and the first row of each part of a flipped product. The parts are computed,
/// transposed and stored one after the other.
#[inline(always)]
fn flips(rows: &Range<usize>, cols: &Range<usize>) -> impl Iterator<Item = (usize, usize)> {
    cols.clone().step_by(PANEL).flat_map(|col| rows.clone().step_by(FLIP_ROWS).map(move |row| (col, row)))
}
