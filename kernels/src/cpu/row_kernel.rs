//! A loop that computes each row of a matrix from the same row of two other matrices. This module must not
//! depend on what is computed.

use std::iter::zip;

use pulp::{Simd, WithSimd};

use super::dispatch::dispatch;
use super::threads::{ELEMENTS_PER_TASK, Threads, share_rows};

/// The computation that [`Rows`] runs for each row. It computes one row of `dst` from the same rows of `a`
/// and `b`.
pub(super) trait RowKernel: Copy + Sync {
    /// Computes one row. Mark the function as `#[inline(always)]`. The computation is a trait because a
    /// closure of this size would not be inlined.
    fn row(&self, dst: &mut [f32], a: &[f32], b: &[f32]);
}

/// A loop that calls `row` for each row of `n` elements.
pub(super) struct Rows<'a, F> {
    pub dst: &'a mut [f32],
    pub a: &'a [f32],
    pub b: &'a [f32],
    pub n: usize,
    pub row: F,
}

impl<F: RowKernel> Rows<'_, F> {
    /// Runs the loop, with the rows divided among the threads.
    pub fn share(self, threads: Threads) {
        let Self { dst, a, b, n, row } = self;
        let (rows, tasks) = (a.len() / n.max(1), threads.tasks(a.len(), ELEMENTS_PER_TASK / 4));
        share_rows([(dst, n)], rows, tasks, &|[dst], part| {
            let part = part.start * n..part.end * n;
            dispatch(Rows { dst, a: &a[part.clone()], b: &b[part], n, row });
        });
    }
}

impl<F: RowKernel> WithSimd for Rows<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let n = self.n.max(1);
        let rows = zip(self.a.chunks_exact(n), self.b.chunks_exact(n));
        for (dst, (a, b)) in self.dst.chunks_exact_mut(n).zip(rows) {
            self.row.row(dst, a, b);
        }
    }
}
