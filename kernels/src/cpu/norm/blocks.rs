//! The division of rows into blocks, and the sums of each block. This module must not depend on what is
//! summed.

use std::iter::zip;
use std::ops::Range;

use crate::cpu::dispatch::zip_map;
use crate::cpu::threads::{Threads, share_rows};

/// Returns the number of floats of scratch memory that `layer_norm_grad`, `column_moments` and
/// `batch_norm_grad` need for a matrix `[rows, n]`. If there are several blocks of rows, each block needs
/// two sums for each column; a single block needs 0 floats.
pub fn norm_scratch([rows, n]: [usize; 2]) -> usize {
    match Blocks::of(rows) {
        Blocks { count: 1, .. } => 0,
        blocks => blocks.count * 2 * n,
    }
}

/// The division of rows into blocks.
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    /// The number of rows in each block. The last block may have fewer.
    pub rows: usize,
    pub count: usize,
}

impl Blocks {
    /// Divides `rows` rows into blocks. The blocks are few, so that their sums take little memory compared
    /// with the rows, and each block is large enough to occupy a thread.
    pub(super) fn of(rows: usize) -> Self {
        let each = rows.div_ceil(64).max(128);
        Self { rows: each, count: rows.div_ceil(each).max(1) }
    }

    /// Calls `work` for each block, with two slices for the block's sums, the block's part of `dst`
    /// (`[rows, n]` or empty) and its range of rows. If there is only one block, the two slices are `first`
    /// and `second`; otherwise, the slices of all blocks are in `scratch`.
    #[track_caller]
    pub(super) fn share(
        self,
        [first, second]: [&mut [f32]; 2],
        dst: &mut [f32],
        rows: usize,
        scratch: &mut [f32],
        tasks: usize,
        work: impl Fn([&mut [f32]; 2], &mut [f32], Range<usize>) + Sync,
    ) {
        let n = first.len();
        if self.count == 1 {
            return work([first, second], dst, 0..rows);
        }
        let want = self.count * 2 * n;
        assert!(
            scratch.len() >= want,
            "norm: scratch has {} elements, expected at least {want}",
            scratch.len()
        );
        let width = if dst.is_empty() { 0 } else { self.rows * n };
        let written = [(&mut scratch[..want], 2 * n), (dst, width)];
        share_rows(written, self.count, tasks, &|[sums, mut dst], blocks| {
            for (sums, block) in zip(sums.chunks_exact_mut(2 * n.max(1)), blocks) {
                let len = width.min(dst.len());
                let (here, rest) = std::mem::take(&mut dst).split_at_mut(len);
                dst = rest;
                let rows = block * self.rows..rows.min((block + 1) * self.rows);
                work(sums.split_at_mut(n).into(), here, rows);
            }
        });
    }

    /// Adds up the sums of all blocks, which [`Blocks::share`] has written to `scratch`. Does nothing if
    /// there is only one block.
    pub(super) fn add_up(self, [first, second]: [&mut [f32]; 2], scratch: &[f32]) {
        let n = first.len();
        if self.count == 1 || n == 0 {
            return;
        }
        first.fill(0.0);
        second.fill(0.0);
        for sums in scratch.chunks_exact(2 * n).take(self.count) {
            zip_map([first, second], [&sums[..n], &sums[n..]], |[a, b], [c, d]| [a + c, b + d], Threads::One);
        }
    }
}
