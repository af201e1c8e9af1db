//! Products of many matrices at once. They must not know what the batch stands for.

use rayon::prelude::*;

use super::matmul::{Threads, matmul};
use super::matrix::MatRef;
use super::shape::expect_len;

/// The shapes of a batched product: `dst[i] = a[i] · b[i]` with `dst` `[batch, m, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchedShape {
    /// Number of products.
    pub batch: usize,
    /// Rows of `a[i]`.
    pub m: usize,
    /// Columns of `a[i]`, rows of `b[i]`.
    pub k: usize,
    /// Columns of `b[i]`.
    pub n: usize,
    /// `a` is stored `[batch, k, m]`, not `[batch, m, k]`.
    pub transpose_a: bool,
    /// `b` is stored `[batch, n, k]`, not `[batch, k, n]`.
    pub transpose_b: bool,
}

/// `dst[i] = a[i] · b[i]` for each `i` of a batch, with the shapes of `shape`. Threads share the batch if it is
/// long enough for all of them, else each product; the bits are those of [`matmul`] in either case.
///
/// # Panics
/// If the slices are not as long as `shape` says.
#[track_caller]
pub fn batched_matmul(dst: &mut [f32], a: &[f32], b: &[f32], shape: BatchedShape, threads: Threads) {
    let BatchedShape { batch, m, k, n, transpose_a, transpose_b } = shape;
    let len = |rows: usize, cols: usize| {
        rows.checked_mul(cols).and_then(|len| len.checked_mul(batch)).expect("batch * rows * cols overflows")
    };
    expect_len("batched_matmul: dst", dst, len(m, n));
    expect_len("batched_matmul: a", a, len(m, k));
    expect_len("batched_matmul: b", b, len(k, n));
    if dst.is_empty() {
        return;
    }
    let view = |x, rows, cols, transposed| {
        if transposed { MatRef::new(x, cols, rows).transpose() } else { MatRef::new(x, rows, cols) }
    };
    let product = |i: usize, dst: &mut [f32], threads| {
        let a = view(&a[i * m * k..][..m * k], m, k, transpose_a);
        let b = view(&b[i * k * n..][..k * n], k, n, transpose_b);
        matmul(dst, a, b, threads);
    };
    const OPERATIONS_PER_TASK: usize = 1 << 18;
    match threads {
        Threads::Pool(count) if count > 1 && batch >= count => {
            let least = OPERATIONS_PER_TASK.div_ceil((m * n).saturating_mul(k).max(1));
            let each = batch.div_ceil(4 * count).max(least);
            let run = |(group, dst): (usize, &mut [f32])| {
                dst.chunks_exact_mut(m * n)
                    .enumerate()
                    .for_each(|(i, dst)| product(group * each + i, dst, Threads::One));
            };
            dst.par_chunks_mut(each.saturating_mul(m * n)).enumerate().for_each(run);
        }
        _ => dst.chunks_exact_mut(m * n).enumerate().for_each(|(i, dst)| product(i, dst, threads)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::testing::{assert_close, bits, floats};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn agrees_with_f64(
            batch in 0usize..6, m in 0usize..20, k in 0usize..20, n in 0usize..20,
            transpose_a: bool, transpose_b: bool, seed: u32,
        ) {
            let shape = BatchedShape { batch, m, k, n, transpose_a, transpose_b };
            let (a, b) = (floats(batch * m * k, seed.into()), floats(batch * k * n, 1));
            let mut dst = vec![f32::NAN; batch * m * n];
            batched_matmul(&mut dst, &a, &b, shape, Threads::One);
            let want = |at: usize| {
                let (i, row, col) = (at / n / m, at / n % m, at % n);
                let of_a = |p| a[i * m * k + if transpose_a { p * m + row } else { row * k + p }];
                let of_b = |p| b[i * k * n + if transpose_b { col * k + p } else { p * n + col }];
                (0..k).map(|p| f64::from(of_a(p)) * f64::from(of_b(p))).sum::<f64>()
            };
            assert_close(&dst, (0..dst.len()).map(want), 20.0);
        }
    }

    #[test]
    fn threads_do_not_change_the_bits() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        for (batch, m) in [(37, 17), (2, 150)] {
            let shape = BatchedShape { batch, m, k: 64, n: 40, transpose_a: false, transpose_b: true };
            let (a, b) = (floats(batch * m * 64, 1), floats(batch * 64 * 40, 2));
            let product = |threads| {
                let mut dst = vec![f32::NAN; batch * m * 40];
                batched_matmul(&mut dst, &a, &b, shape, threads);
                bits(&dst)
            };
            let one = product(Threads::One);
            for threads in [0, 1, 2, 3, 8] {
                assert!(one == pool.install(|| product(Threads::Pool(threads))), "{threads} threads");
            }
        }
    }
}
