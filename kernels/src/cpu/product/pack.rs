//! Copies the right-hand matrix into panels, in which elements that are read together are stored together.
//! This module must not depend on the left-hand matrix.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::transpose::transpose;
use super::{DEPTH, PANEL};

/// The right-hand matrix, `[depth, cols]`; if `transposed` is true, it is stored as `[cols, depth]`.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub data: &'a [f32],
    pub depth: usize,
    pub cols: usize,
    pub transposed: bool,
    /// The instruction set to copy with.
    pub arch: Arch,
}

impl Source<'_> {
    /// Copies the matrix to panels, one after the other. Each panel has [`PANEL`] columns, except the last,
    /// which has the remaining columns. A panel is stored as `[depth, width]`.
    pub fn pack(self, dst: &mut [f32], tasks: usize) {
        /// The least number of floats for which it is worth waking a thread.
        const LEN_PER_TASK: usize = 1 << 15;
        let tasks = tasks.min(dst.len() / LEN_PER_TASK).max(1);
        self.share(dst, 0..self.cols, 0..self.depth, tasks);
    }

    /// Copies the columns `cols`, which form one or more whole panels. If they form several panels, `rows`
    /// must be all rows. If they form a single panel, `rows` may be any range of the panel's rows, so that
    /// several tasks can share the panel.
    fn share(self, dst: &mut [f32], cols: Range<usize>, rows: Range<usize>, tasks: usize) {
        if tasks < 2 || rows.len() < 32 {
            return self.arch.dispatch(Pack { dst, source: self, cols, rows });
        }
        let panels = cols.len().div_ceil(PANEL);
        let (mid_col, mid_row) = match panels {
            0 | 1 => (cols.end, rows.start + rows.len() / 2),
            _ => (cols.start + panels / 2 * PANEL, rows.end),
        };
        let (first, second) = dst.split_at_mut((mid_col - cols.start) * (mid_row - rows.start));
        let [cols_2, rows_2] =
            if panels < 2 { [cols.clone(), mid_row..rows.end] } else { [mid_col..cols.end, rows.clone()] };
        rayon::join(
            || self.share(first, cols.start..mid_col, rows.start..mid_row, tasks / 2),
            || self.share(second, cols_2, rows_2, tasks - tasks / 2),
        );
    }
}

struct Pack<'a> {
    dst: &'a mut [f32],
    source: Source<'a>,
    cols: Range<usize>,
    rows: Range<usize>,
}

impl WithSimd for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { mut dst, source: Source { data, depth, cols: stride, transposed, .. }, cols, rows } = self;
        for col in cols.clone().step_by(PANEL) {
            let width = PANEL.min(cols.end - col);
            let (panel, rest) = std::mem::take(&mut dst).split_at_mut(width * rows.len());
            dst = rest;
            if transposed {
                // A few rows are copied at a time, so that the written cache lines stay in the first-level
                // cache.
                for row in rows.clone().step_by(DEPTH / 4) {
                    let len = (DEPTH / 4).min(rows.end - row);
                    let panel = &mut panel[(row - rows.start) * width..];
                    transpose(simd, &mut (panel, width), (&data[col * depth + row..], depth), width, len);
                }
            } else {
                for (panel, row) in panel.chunks_exact_mut(width).zip(rows.clone()) {
                    panel.copy_from_slice(&data[row * stride + col..][..width]);
                }
            }
        }
    }
}
