//! Losses against dense targets, as means, and their gradients. They must not know batches' origins.

use std::iter::zip;

use pulp::{Simd, WithSimd};

use super::dispatch::{dispatch, zip_map, zip_map_loop};
use super::exp::{exp, ln_1p, sigmoid};
use super::reduce::total;
use super::rows::{row_max, row_sum};
use super::shape::{expect_len, expect_rows};
use super::softmax_axis::{RowKernel, Rows, softmax_row};
use super::threads::Threads;

/// The mean over rows of `−Σ labels[r, ·] · log softmax(logits[r, ·])`, both `[rows, classes]`; a row of labels
/// is a distribution, or any weights. 0 for no rows.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn softmax_cross_entropy_dense(logits: &[f32], labels: &[f32], classes: usize) -> f32 {
    expect_len("softmax_cross_entropy_dense: labels", labels, logits.len());
    let rows = expect_rows("softmax_cross_entropy_dense: logits", logits, classes);
    if rows == 0 {
        return 0.0;
    }
    let total = dispatch(Dense { logits, labels, classes });
    (total / rows as f64) as f32
}

/// The sum of the rows' losses.
struct Dense<'a> {
    logits: &'a [f32],
    labels: &'a [f32],
    classes: usize,
}

impl WithSimd for Dense<'_> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f64 {
        let Self { logits, labels, classes } = self;
        let mut total = 0.0;
        for (logits, labels) in zip(logits.chunks_exact(classes), labels.chunks_exact(classes)) {
            let max = row_max(logits);
            let sum = row_sum([logits], |[x]| exp(x - max)).ln();
            total += f64::from(row_sum([logits, labels], |[x, label]| label * (sum - (x - max))));
        }
        total
    }
}

/// The gradient of [`softmax_cross_entropy_dense`] by the logits, times `upstream`: `dst[r, j] = (softmax[r, j]
/// · Σ labels[r, ·] − labels[r, j]) · upstream / rows`.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn softmax_cross_entropy_dense_grad(
    dst: &mut [f32],
    logits: &[f32],
    labels: &[f32],
    classes: usize,
    upstream: f32,
    threads: Threads,
) {
    expect_len("softmax_cross_entropy_dense_grad: dst", dst, logits.len());
    expect_len("softmax_cross_entropy_dense_grad: labels", labels, logits.len());
    let rows = expect_rows("softmax_cross_entropy_dense_grad: logits", logits, classes);
    let factor = upstream / rows as f32;
    Rows { dst, a: logits, b: labels, n: classes, row: DenseGrad { factor } }.share(threads);
}

#[derive(Clone, Copy)]
struct DenseGrad {
    factor: f32,
}

impl RowKernel for DenseGrad {
    #[inline(always)]
    fn row(&self, dst: &mut [f32], logits: &[f32], labels: &[f32]) {
        softmax_row(dst, logits);
        let weight = row_sum([labels], |[label]| label);
        zip_map_loop([dst], [labels], |[y], [label]| [(y * weight - label) * self.factor]);
    }
}

/// The mean of `−z · log σ(x) − (1 − z) · log(1 − σ(x))`, with `x` the logits, `z` the labels in 0..=1 and `σ`
/// the sigmoid. Computed as `max(x, 0) − x · z + log(1 + e^−|x|)`, which does not overflow. 0 for no elements.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn sigmoid_cross_entropy(logits: &[f32], labels: &[f32]) -> f32 {
    expect_len("sigmoid_cross_entropy: labels", labels, logits.len());
    (dispatch(SigmoidLosses { logits, labels }) / logits.len().max(1) as f64) as f32
}

/// The sum of the elements' losses.
struct SigmoidLosses<'a> {
    logits: &'a [f32],
    labels: &'a [f32],
}

impl WithSimd for SigmoidLosses<'_> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f64 {
        const BLOCK: usize = 1024;
        let mut losses = [0.0; BLOCK];
        let mut total = 0.0;
        for (x, z) in zip(self.logits.chunks(BLOCK), self.labels.chunks(BLOCK)) {
            // Not a closure, which is too large to be inlined, and without that no vector.
            let (losses, z) = (&mut losses[..x.len()], &z[..x.len()]);
            for i in 0..x.len() {
                losses[i] = sigmoid_loss(x[i], z[i]);
            }
            total += f64::from(row_sum([&*losses], |[loss]| loss));
        }
        total
    }
}

#[inline(always)]
fn sigmoid_loss(x: f32, z: f32) -> f32 {
    let positive = if x < 0.0 { 0.0 } else { x };
    positive - x * z + ln_1p(exp(-x.abs()))
}

/// The gradient of [`sigmoid_cross_entropy`] by the logits, times `upstream`: `dst[i] = (σ(x[i]) − z[i]) ·
/// upstream / len`.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn sigmoid_cross_entropy_grad(
    dst: &mut [f32],
    logits: &[f32],
    labels: &[f32],
    upstream: f32,
    threads: Threads,
) {
    let factor = upstream / logits.len() as f32;
    zip_map([dst], [logits, labels], |_, [x, z]| [(sigmoid(x) - z) * factor], threads);
}

/// The mean of `(x − target)²`; 0 for no elements.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn mean_squared_error(x: &[f32], target: &[f32]) -> f32 {
    mean([x, target], |[x, target]| (x - target) * (x - target))
}

/// The gradient of [`mean_squared_error`] by `x`, times `upstream`: `dst[i] = 2 (x[i] − target[i]) · upstream /
/// len`.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn mean_squared_error_grad(dst: &mut [f32], x: &[f32], target: &[f32], upstream: f32, threads: Threads) {
    let factor = 2.0 * upstream / x.len() as f32;
    zip_map([dst], [x, target], |_, [x, target]| [(x - target) * factor], threads);
}

/// The mean of `term`; 0 for no elements.
#[track_caller]
fn mean(inputs: [&[f32]; 2], term: impl Fn([f32; 2]) -> f32) -> f32 {
    (total(inputs, term) / inputs[0].len().max(1) as f64) as f32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::testing::{assert_close, floats};

    /// Checks a gradient against difference quotients of the loss in `f64`.
    fn check_grad(grad: &[f32], x: &[f64], upstream: f32, loss: impl Fn(&[f64]) -> f64) {
        let h = 1e-5;
        let slope = |i: usize| {
            let at = |h: f64| {
                let mut x = x.to_vec();
                x[i] += h;
                loss(&x)
            };
            (at(h) - at(-h)) / (2.0 * h) * f64::from(upstream)
        };
        assert_close(grad, (0..x.len()).map(slope), 10.0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn agree_with_f64(rows in 1usize..6, n in 1usize..20, upstream in -2f32..2.0, seed: u32) {
            let x = floats(rows * n, seed.into());
            let z: Vec<f32> = floats(rows * n, 1).iter().map(|z| z.abs().min(1.0)).collect();
            let [x64, z64] = [&x, &z].map(|x| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
            let len = x.len() as f64;
            let mut dx = vec![f32::NAN; x.len()];

            let loss = |x: &[f64]| {
                let row = |(x, z): (&[f64], &[f64])| {
                    let sum = x.iter().map(|x| x.exp()).sum::<f64>().ln();
                    x.iter().zip(z).map(|(x, z)| z * (sum - x)).sum::<f64>()
                };
                x.chunks(n).zip(z64.chunks(n)).map(row).sum::<f64>() / rows as f64
            };
            assert_close(&[softmax_cross_entropy_dense(&x, &z, n)], [loss(&x64)], 4.0);
            softmax_cross_entropy_dense_grad(&mut dx, &x, &z, n, upstream, Threads::One);
            check_grad(&dx, &x64, upstream, loss);

            let loss = |x: &[f64]| {
                let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
                let term = |(&x, &z): (&f64, &f64)| z * sigmoid(x).ln() + (1.0 - z) * sigmoid(-x).ln();
                -x.iter().zip(&z64).map(term).sum::<f64>() / len
            };
            assert_close(&[sigmoid_cross_entropy(&x, &z)], [loss(&x64)], 4.0);
            sigmoid_cross_entropy_grad(&mut dx, &x, &z, upstream, Threads::One);
            check_grad(&dx, &x64, upstream, loss);

            let loss = |x: &[f64]| x.iter().zip(&z64).map(|(x, z)| (x - z).powi(2)).sum::<f64>() / len;
            assert_close(&[mean_squared_error(&x, &z)], [loss(&x64)], 1.0);
            mean_squared_error_grad(&mut dx, &x, &z, upstream, Threads::One);
            check_grad(&dx, &x64, upstream, loss);
        }
    }

    #[test]
    fn extremes() {
        let max = f32::MAX;
        assert_eq!(sigmoid_cross_entropy(&[max, -max], &[1.0, 0.0]), 0.0);
        assert_eq!(softmax_cross_entropy_dense(&[max, 0.0], &[1.0, 0.0], 2), 0.0);
        assert_eq!((mean_squared_error(&[], &[]), sigmoid_cross_entropy(&[], &[])), (0.0, 0.0));
        assert_eq!(softmax_cross_entropy_dense(&[], &[], 0), 0.0);
    }
}
