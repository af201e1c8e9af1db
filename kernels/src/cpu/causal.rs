//! The softmax of causal attention, in which a position attends only to itself and to earlier positions.
//! This module must not know what the positions stand for.

use std::iter::zip;

use pulp::{Simd, WithSimd};

use super::dispatch::dispatch;
use super::shape::{expect_len, expect_rows};
use super::softmax::softmax_row;
use super::threads::{ELEMENTS_PER_TASK, Threads, share_rows};

/// Computes the [`softmax`](super::softmax()) of the first `i + 1` elements of row `i` of each square matrix,
/// and sets the other elements of the row to 0. `dst` and `x` are `[squares, n, n]`. The gradient is
/// [`softmax_grad`](super::softmax_grad).
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn causal_softmax(dst: &mut [f32], x: &[f32], n: usize, threads: Threads) {
    expect_len("causal_softmax: dst", dst, x.len());
    let rows = expect_rows("causal_softmax: x", x, n);
    assert!(
        n == 0 || rows.is_multiple_of(n),
        "causal_softmax: {rows} rows of {n} do not form square matrices"
    );
    share_rows([(dst, n)], rows, threads.tasks(x.len(), ELEMENTS_PER_TASK), &|[dst], part| {
        let x = &x[part.start * n..part.end * n];
        dispatch(Causal { dst, x, n, first: part.start });
    });
}

struct Causal<'a> {
    dst: &'a mut [f32],
    x: &'a [f32],
    n: usize,
    /// The index, in the whole tensor, of the first row of `x`.
    first: usize,
}

impl WithSimd for Causal<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dst, x, n, first } = self;
        let rows = zip(dst.chunks_exact_mut(n.max(1)), x.chunks_exact(n.max(1)));
        for (row, (dst, x)) in zip(first.., rows) {
            let count = row % n + 1;
            let (seen, unseen) = dst.split_at_mut(count);
            softmax_row(seen, &x[..count]);
            unseen.fill(0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::softmax;
    use crate::cpu::tests::{bits, floats};

    proptest! {
        #[test]
        fn each_row_is_the_softmax_of_what_it_may_see(squares in 0usize..4, n in 0usize..20, seed: u32) {
            let x = floats(squares * n * n, seed.into());
            let mut got = vec![f32::NAN; x.len()];
            causal_softmax(&mut got, &x, n, Threads::One);
            for (row, (got, x)) in got.chunks_exact(n.max(1)).zip(x.chunks_exact(n.max(1))).enumerate() {
                let count = row % n + 1;
                let mut want = vec![f32::NAN; count];
                softmax(&mut want, &x[..count], count, Threads::One);
                prop_assert_eq!(bits(&got[..count]), bits(&want));
                prop_assert!(got[count..].iter().all(|&got| got == 0.0));
            }
        }
    }

    #[test]
    fn threads_do_not_change_the_bits() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let x = floats(8 * 64 * 64, 1);
        let softmax = |threads| {
            let mut dst = vec![f32::NAN; x.len()];
            causal_softmax(&mut dst, &x, 64, threads);
            bits(&dst)
        };
        assert!(softmax(Threads::One) == pool.install(|| softmax(Threads::Pool(3))));
    }
}
