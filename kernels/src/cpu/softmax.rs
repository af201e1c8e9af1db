//! Softmax over the last axis, its logarithm, and their gradients. The rows are divided among the threads.
//! This module must not depend on losses.

use super::dispatch::zip_map_loop;
use super::exp::exp;
use super::row_kernel::{RowKernel, Rows};
use super::rows::{row_max, row_sum};
use super::shape::{expect_len, expect_rows};
use super::threads::Threads;

/// Computes `dst[r, j] = eˣ[r, j] / Σ eˣ[r, ·]`, where `dst` and `x` are `[rows, n]`. The computation uses
/// exponentials of `x − max`, which do not overflow. A row that contains a NaN or +∞, or only −∞, becomes
/// NaN.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn softmax(dst: &mut [f32], x: &[f32], n: usize, threads: Threads) {
    expect_len("softmax: dst", dst, x.len());
    expect_rows("softmax: x", x, n);
    Rows { dst, a: x, b: x, n, row: Softmax }.share(threads);
}

#[derive(Clone, Copy)]
struct Softmax;

impl RowKernel for Softmax {
    #[inline(always)]
    fn row(&self, dst: &mut [f32], x: &[f32], _: &[f32]) {
        softmax_row(dst, x);
    }
}

/// Computes the gradient of [`softmax`]: `dst[r, j] = y[r, j] · (dy[r, j] − Σ y[r, ·] · dy[r, ·])`, where
/// `y` is the output of the forward function and all slices are `[rows, n]`.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn softmax_grad(dst: &mut [f32], y: &[f32], dy: &[f32], n: usize, threads: Threads) {
    expect_len("softmax_grad: dst", dst, y.len());
    expect_len("softmax_grad: dy", dy, y.len());
    expect_rows("softmax_grad: y", y, n);
    Rows { dst, a: y, b: dy, n, row: SoftmaxGrad }.share(threads);
}

#[derive(Clone, Copy)]
struct SoftmaxGrad;

impl RowKernel for SoftmaxGrad {
    #[inline(always)]
    fn row(&self, dst: &mut [f32], y: &[f32], dy: &[f32]) {
        let dot = row_sum([y, dy], |[y, dy]| y * dy);
        zip_map_loop([dst], [y, dy], |_, [y, dy]| [y * (dy - dot)]);
    }
}

/// Computes `dst[r, j] = x[r, j] − log Σ eˣ[r, ·]`, where `dst` and `x` are `[rows, n]`; overflow and NaN are
/// treated as in [`softmax`].
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn log_softmax(dst: &mut [f32], x: &[f32], n: usize, threads: Threads) {
    expect_len("log_softmax: dst", dst, x.len());
    expect_rows("log_softmax: x", x, n);
    Rows { dst, a: x, b: x, n, row: LogSoftmax }.share(threads);
}

#[derive(Clone, Copy)]
struct LogSoftmax;

impl RowKernel for LogSoftmax {
    #[inline(always)]
    fn row(&self, dst: &mut [f32], x: &[f32], _: &[f32]) {
        let max = row_max(x);
        let sum = row_sum([x], |[x]| exp(x - max)).ln();
        zip_map_loop([dst], [x], |_, [x]| [(x - max) - sum]);
    }
}

/// Computes the gradient of [`log_softmax`]: `dst[r, j] = dy[r, j] − e^y[r, j] · Σ dy[r, ·]`, where `y` is
/// the output of the forward function and all slices are `[rows, n]`.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn log_softmax_grad(dst: &mut [f32], y: &[f32], dy: &[f32], n: usize, threads: Threads) {
    expect_len("log_softmax_grad: dst", dst, y.len());
    expect_len("log_softmax_grad: dy", dy, y.len());
    expect_rows("log_softmax_grad: y", y, n);
    Rows { dst, a: y, b: dy, n, row: LogSoftmaxGrad }.share(threads);
}

#[derive(Clone, Copy)]
struct LogSoftmaxGrad;

impl RowKernel for LogSoftmaxGrad {
    #[inline(always)]
    fn row(&self, dst: &mut [f32], y: &[f32], dy: &[f32]) {
        let sum = row_sum([dy], |[dy]| dy);
        zip_map_loop([dst], [y, dy], |_, [y, dy]| [dy - exp(y) * sum]);
    }
}

/// Computes the softmax of one row, for kernels that already run inside [`dispatch`].
#[inline(always)]
pub(super) fn softmax_row(dst: &mut [f32], x: &[f32]) {
    let max = row_max(x);
    zip_map_loop([dst], [x], |_, [x]| [exp(x - max)]);
    let sum = row_sum([dst], |[x]| x);
    zip_map_loop([dst], [], |[x], []| [x / sum]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::tests::{assert_close, floats};

    fn reference(x: &[f64]) -> Vec<f64> {
        let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = x.iter().map(|x| (x - max).exp()).sum();
        x.iter().map(|x| (x - max).exp() / sum).collect()
    }

    proptest! {
        #[test]
        fn agree_with_f64(rows in 0usize..8, n in 1usize..70, scale in 0.1f32..10.0, seed: u32) {
            let x: Vec<f32> = floats(rows * n, seed.into()).iter().map(|x| x * scale).collect();
            let dy = floats(rows * n, 1);
            let x64: Vec<f64> = x.iter().map(|&x| x.into()).collect();
            let want: Vec<f64> = x64.chunks(n).flat_map(reference).collect();
            let (mut y, mut log, mut dx) = (vec![f32::NAN; x.len()], vec![f32::NAN; x.len()], vec![f32::NAN; x.len()]);
            softmax(&mut y, &x, n, Threads::One);
            // The tolerance grows with the scale, because the exponential amplifies the rounding error of
            // the differences of logits.
            assert_close(&y, want.iter().copied(), f64::from(scale).max(1.0));
            log_softmax(&mut log, &x, n, Threads::One);
            assert_close(&log, want.iter().map(|y| y.ln()), f64::from(scale).max(4.0));

            // Both gradients are compared with difference quotients in `f64`.
            for logarithm in [false, true] {
                let f = |row: &[f64], dy: &[f32]| -> f64 {
                    let y = reference(row);
                    y.iter().zip(dy).map(|(y, &dy)| f64::from(dy) * if logarithm { y.ln() } else { *y }).sum()
                };
                if logarithm { log_softmax_grad(&mut dx, &log, &dy, n, Threads::One) } else { softmax_grad(&mut dx, &y, &dy, n, Threads::One) }
                for (i, &dx) in dx.iter().enumerate() {
                    let (row, h) = (i / n * n, 1e-5);
                    let at = |h| {
                        let mut x = x64[row..row + n].to_vec();
                        x[i - row] += h;
                        f(&x, &dy[row..row + n])
                    };
                    let slope = (at(h) - at(-h)) / (2.0 * h);
                    prop_assert!((f64::from(dx) - slope).abs() < 1e-4, "{} {}", dx, slope);
                }
            }
        }
    }

    #[test]
    fn extreme_rows() {
        let mut y = [0.0; 4];
        softmax(&mut y, &[f32::MAX, 0.0, -f32::MAX, f32::NEG_INFINITY], 4, Threads::One);
        assert_eq!(y, [1.0, 0.0, 0.0, 0.0]);
        softmax(&mut y, &[f32::NAN, 0.0, 0.0, 0.0], 4, Threads::One);
        assert!(y.iter().all(|y| y.is_nan()));
    }
}
