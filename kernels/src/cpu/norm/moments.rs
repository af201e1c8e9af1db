//! Mean and variance of each column. This module must not depend on the use of these moments.

use std::iter::zip;

use pulp::{Simd, WithSimd};

use super::blocks::Blocks;
use crate::cpu::dispatch::{dispatch, zip_map, zip_map_loop};
use crate::cpu::shape::{expect_len, expect_rows};
use crate::cpu::threads::{ELEMENTS_PER_TASK, Threads};

/// Computes the mean and the (biased) variance of each column of `x`, `[rows, n]`; `mean` and `variance` are
/// `[n]`. Both are NaN if there are no rows.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn column_moments(
    mean: &mut [f32],
    variance: &mut [f32],
    x: &[f32],
    scratch: &mut [f32],
    threads: Threads,
) {
    let n = mean.len();
    expect_len("column_moments: variance", variance, n);
    let rows = expect_rows("column_moments: x", x, n);
    let (blocks, tasks) = (Blocks::of(rows), threads.tasks(x.len(), ELEMENTS_PER_TASK));
    blocks.share([&mut *mean, &mut *variance], &mut [], rows, scratch, tasks, |[mean, squares], _, rows| {
        dispatch(ColumnMoments { mean, squares, x: &x[rows.start * n..rows.end * n] });
    });
    if blocks.count > 1 {
        mean.fill(0.0);
        variance.fill(0.0);
        for (block, sums) in scratch.chunks_exact(2 * n.max(1)).take(blocks.count).enumerate() {
            let before = block * blocks.rows;
            let (block_mean, block_squares) = sums[..2 * n].split_at(n);
            let merge = Merge { counts: [before, blocks.rows.min(rows - before)] };
            merge.run([&mut *mean, &mut *variance], [block_mean, block_squares]);
        }
    }
    let count = rows as f32;
    zip_map([variance], [], |[squares], []| [squares / count], Threads::One);
    if rows == 0 {
        mean.fill(f32::NAN);
    }
}

/// The computation of the mean of each column, and of the sum of squared differences from that mean.
struct ColumnMoments<'a> {
    mean: &'a mut [f32],
    squares: &'a mut [f32],
    x: &'a [f32],
}

impl WithSimd for ColumnMoments<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        /// The numbers of columns and of rows in a part. A part is read twice: first for its means, then for
        /// the differences from the means. The part is small, so the second read finds it in the first-level
        /// cache.
        const COLS: usize = 64;
        const ROWS: usize = 64;
        let Self { mean, squares, x } = self;
        let n = mean.len().max(1);
        mean.fill(0.0);
        squares.fill(0.0);
        for (part, x) in x.chunks(ROWS * n).enumerate() {
            let rows = x.len() / n;
            for (col, (mean, squares)) in zip(mean.chunks_mut(COLS), squares.chunks_mut(COLS)).enumerate() {
                let cols = col * COLS..col * COLS + mean.len();
                let first = &x[cols.clone()];
                let (mut part_mean, mut part_squares) = ([0.0; COLS], [0.0; COLS]);
                let (part_mean, part_squares) =
                    (&mut part_mean[..mean.len()], &mut part_squares[..mean.len()]);
                for x in x.chunks_exact(n) {
                    // The differences from the first row are summed, because a column's numbers may be far
                    // from 0 and a plain sum would lose digits.
                    zip_map_loop([&mut *part_mean], [&x[cols.clone()], first], |[sum], [x, first]| {
                        [sum + (x - first)]
                    });
                }
                zip_map_loop([&mut *part_mean], [first], |[sum], [first]| [first + sum / rows as f32]);
                for x in x.chunks_exact(n) {
                    zip_map_loop(
                        [&mut *part_squares],
                        [&x[cols.clone()], &*part_mean],
                        |[sum], [x, mean]| [sum + (x - mean) * (x - mean)],
                    );
                }
                Merge { counts: [part * ROWS, rows] }.run([mean, squares], [part_mean, part_squares]);
            }
        }
    }
}

/// The merge of the moments of two groups of rows; `counts` are the numbers of rows in the two groups.
struct Merge {
    counts: [usize; 2],
}

impl Merge {
    /// Merges the means and sums of squared differences of the second group, `other`, into those of the
    /// first, `merged` (Chan et al. 1979).
    #[inline(always)]
    fn run(&self, merged: [&mut [f32]; 2], other: [&[f32]; 2]) {
        let [before, more] = self.counts.map(|count| count as f32);
        let share = more / (before + more);
        zip_map_loop(merged, other, |[mean, squares], [more_mean, more_squares]| {
            let delta = more_mean - mean;
            [mean + delta * share, squares + more_squares + delta * delta * (before * share)]
        });
    }
}
