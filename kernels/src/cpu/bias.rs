//! The gradient of a bias that was added to every row of a matrix. This module must not depend on layers.

use pulp::{Simd, WithSimd};

use super::dispatch::{dispatch, zip_map_loop};
use super::shape::expect_rows;
use super::threads::{ELEMENTS_PER_TASK, Threads, share_rows};

/// Computes the gradient of the bias, `dst[j] = Σ_r x[r, j]`, where `x` is `[rows, n]` and `dst` is `[n]`.
/// Rows are added in order.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn sum_rows(dst: &mut [f32], x: &[f32], threads: Threads) {
    expect_rows("x", x, dst.len());
    // The columns are divided among the tasks, since the sums of two columns are independent. Each task gets
    // at least a cache line of columns.
    let n = dst.len();
    let tasks = threads.tasks(x.len(), ELEMENTS_PER_TASK).min(n / 16).max(1);
    share_rows([(dst, 1)], n, tasks, &|[dst], cols| dispatch(SumRows { dst, x, n, first: cols.start }));
}

struct SumRows<'a> {
    dst: &'a mut [f32],
    /// All rows, with `n` elements each. `dst[j]` becomes the sum of column `first + j`.
    x: &'a [f32],
    n: usize,
    first: usize,
}

impl WithSimd for SumRows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dst, x, n, first } = self;
        dst.fill(0.0);
        let cols = first..first + dst.len();
        for row in x.chunks_exact(n.max(1)) {
            zip_map_loop([dst], [&row[cols.clone()]], |[sum], [x]| [sum + x]);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::tests::{assert_close, floats};

    proptest! {
        #[test]
        fn agrees_with_f64(rows in 0usize..20, n in 0usize..70, seed: u32) {
            let x = floats(rows * n, seed.into());
            let mut sums = vec![f32::NAN; n];
            sum_rows(&mut sums, &x, Threads::One);
            let column = |j| (0..rows).map(|r| f64::from(x[r * n + j])).sum();
            assert_close(&sums, (0..n).map(column), rows as f64);
        }
    }

    #[test]
    #[should_panic(expected = "x has 1 elements, which is not a multiple of the row length 0")]
    fn an_empty_bias_fits_only_an_empty_matrix() {
        sum_rows(&mut [], &[1.0], Threads::One);
    }
}
