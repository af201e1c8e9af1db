//! Normalisation to mean 0 and variance 1, over the last axis (layer norm: Ba et al. 2016) or over all others
//! (batch norm: Ioffe & Szegedy 2015), and the gradients.
//!
//! It must not know layers, nor how running statistics are kept.

use std::iter::zip;

use pulp::{Simd, WithSimd};

use super::dispatch::{dispatch, zip_map, zip_map_loop};
use super::rows::row_sum;
use super::shape::{expect_len, expect_rows};

/// `dst[r, j] = (x[r, j] − mean[r]) · rstd[r] · gamma[j] + beta[j]`, with `mean` and `rstd = 1 / √(variance +
/// epsilon)` of each row, which are written too. `dst` and `x` are `[rows, n]`, `gamma` and `beta` `[n]`,
/// `mean` and `rstd` `[rows]`.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn layer_norm(
    dst: &mut [f32],
    [mean, rstd]: [&mut [f32]; 2],
    x: &[f32],
    [gamma, beta]: [&[f32]; 2],
    epsilon: f32,
) {
    let rows = expect_rows("layer_norm: x", x, gamma.len());
    expect_len("layer_norm: dst", dst, x.len());
    expect_len("layer_norm: beta", beta, gamma.len());
    expect_len("layer_norm: mean", mean, rows);
    expect_len("layer_norm: rstd", rstd, rows);
    dispatch(LayerNorm { dst, mean, rstd, x, gamma, beta, epsilon });
}

/// The gradients of [`layer_norm`]: `dx` is `[rows, n]`, `dgamma` and `dbeta` are `[n]`; `dy` is the gradient
/// of its output, `mean` and `rstd` are what it has written.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn layer_norm_grad(
    dx: &mut [f32],
    [dgamma, dbeta]: [&mut [f32]; 2],
    x: &[f32],
    dy: &[f32],
    [mean, rstd]: [&[f32]; 2],
    gamma: &[f32],
) {
    let rows = expect_rows("layer_norm_grad: x", x, gamma.len());
    expect_len("layer_norm_grad: dx", dx, x.len());
    expect_len("layer_norm_grad: dy", dy, x.len());
    expect_len("layer_norm_grad: dgamma", dgamma, gamma.len());
    expect_len("layer_norm_grad: dbeta", dbeta, gamma.len());
    expect_len("layer_norm_grad: mean", mean, rows);
    expect_len("layer_norm_grad: rstd", rstd, rows);
    dispatch(LayerNormGrad { dx, dgamma, dbeta, x, dy, mean, rstd, gamma });
}

/// The mean and the (biased) variance of each column of `x`, `[rows, n]`; `mean` and `variance` are `[n]`. NaN
/// for no rows.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn column_moments(mean: &mut [f32], variance: &mut [f32], x: &[f32]) {
    expect_len("column_moments: variance", variance, mean.len());
    expect_rows("column_moments: x", x, mean.len());
    dispatch(ColumnMoments { mean, variance, x });
}

/// `dst[j] = 1 / √(variance[j] + epsilon)`.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn reciprocal_stddev(dst: &mut [f32], variance: &[f32], epsilon: f32) {
    zip_map([dst], [variance], |_, [variance]| [1.0 / (variance + epsilon).sqrt()]);
}

/// `dst[r, j] = (x[r, j] − mean[j]) · rstd[j] · gamma[j] + beta[j]`: batch norm, of
/// [`column_moments`] while training, of running statistics after. `dst` and `x` are `[rows, n]`, the others
/// `[n]`; `rstd` is from [`reciprocal_stddev`].
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn batch_norm(dst: &mut [f32], x: &[f32], [mean, rstd]: [&[f32]; 2], [gamma, beta]: [&[f32]; 2]) {
    expect_len("batch_norm: dst", dst, x.len());
    expect_rows("batch_norm: x", x, gamma.len());
    expect_len("batch_norm: beta", beta, gamma.len());
    expect_len("batch_norm: mean", mean, gamma.len());
    expect_len("batch_norm: rstd", rstd, gamma.len());
    dispatch(BatchNorm { dst, x, mean, rstd, gamma, beta });
}

/// The gradients of [`batch_norm`] where `mean` and `rstd` come from `x`: `dx` is `[rows, n]`, `dgamma` and
/// `dbeta` are `[n]`; `dy` is the gradient of its output.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn batch_norm_grad(
    dx: &mut [f32],
    [dgamma, dbeta]: [&mut [f32]; 2],
    x: &[f32],
    dy: &[f32],
    [mean, rstd]: [&[f32]; 2],
    gamma: &[f32],
) {
    let n = gamma.len();
    expect_rows("batch_norm_grad: x", x, n);
    expect_len("batch_norm_grad: dx", dx, x.len());
    expect_len("batch_norm_grad: dy", dy, x.len());
    expect_len("batch_norm_grad: dgamma", dgamma, n);
    expect_len("batch_norm_grad: dbeta", dbeta, n);
    expect_len("batch_norm_grad: mean", mean, n);
    expect_len("batch_norm_grad: rstd", rstd, n);
    dispatch(BatchNormGrad { dx, dgamma, dbeta, x, dy, mean, rstd, gamma });
}

struct LayerNorm<'a> {
    dst: &'a mut [f32],
    mean: &'a mut [f32],
    rstd: &'a mut [f32],
    x: &'a [f32],
    gamma: &'a [f32],
    beta: &'a [f32],
    epsilon: f32,
}

impl WithSimd for LayerNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dst, mean, rstd, x, gamma, beta, epsilon } = self;
        let (n, count) = (gamma.len().max(1), gamma.len() as f32);
        for ((dst, x), (mean, rstd)) in zip(zip(dst.chunks_exact_mut(n), x.chunks_exact(n)), zip(mean, rstd))
        {
            *mean = row_sum([x], |[x]| x) / count;
            let center = *mean;
            let variance = row_sum([x], |[x]| (x - center) * (x - center)) / count;
            *rstd = 1.0 / (variance + epsilon).sqrt();
            let scale = *rstd;
            zip_map_loop(
                [dst],
                [x, gamma, beta],
                |_, [x, gamma, beta]| [(x - center) * scale * gamma + beta],
            );
        }
    }
}

struct LayerNormGrad<'a> {
    dx: &'a mut [f32],
    dgamma: &'a mut [f32],
    dbeta: &'a mut [f32],
    x: &'a [f32],
    dy: &'a [f32],
    mean: &'a [f32],
    rstd: &'a [f32],
    gamma: &'a [f32],
}

impl WithSimd for LayerNormGrad<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dx, dgamma, dbeta, x, dy, mean, rstd, gamma } = self;
        let (n, count) = (gamma.len().max(1), gamma.len() as f32);
        dgamma.fill(0.0);
        dbeta.fill(0.0);
        let rows = zip(zip(x.chunks_exact(n), dy.chunks_exact(n)), zip(mean, rstd));
        for (dx, ((x, dy), (&mean, &rstd))) in zip(dx.chunks_exact_mut(n), rows) {
            zip_map_loop([dgamma, dbeta], [x, dy], |[dgamma, dbeta], [x, dy]| {
                [dgamma + dy * ((x - mean) * rstd), dbeta + dy]
            });
            let slope = row_sum([dy, gamma], |[dy, gamma]| dy * gamma) / count;
            let tilt = row_sum([dy, gamma, x], |[dy, gamma, x]| dy * gamma * ((x - mean) * rstd)) / count;
            zip_map_loop([dx], [x, dy, gamma], |_, [x, dy, gamma]| {
                [rstd * (dy * gamma - slope - (x - mean) * rstd * tilt)]
            });
        }
    }
}

struct ColumnMoments<'a> {
    mean: &'a mut [f32],
    variance: &'a mut [f32],
    x: &'a [f32],
}

impl WithSimd for ColumnMoments<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { mean, variance, x } = self;
        let n = mean.len().max(1);
        let count = (x.len() / n) as f32;
        mean.fill(0.0);
        variance.fill(0.0);
        for x in x.chunks_exact(n) {
            zip_map_loop([mean], [x], |[sum], [x]| [sum + x]);
        }
        zip_map_loop([mean], [], |[sum], []| [sum / count]);
        for x in x.chunks_exact(n) {
            zip_map_loop([variance], [x, mean], |[sum], [x, mean]| [sum + (x - mean) * (x - mean)]);
        }
        zip_map_loop([variance], [], |[sum], []| [sum / count]);
    }
}

struct BatchNorm<'a> {
    dst: &'a mut [f32],
    x: &'a [f32],
    mean: &'a [f32],
    rstd: &'a [f32],
    gamma: &'a [f32],
    beta: &'a [f32],
}

impl WithSimd for BatchNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dst, x, mean, rstd, gamma, beta } = self;
        let n = gamma.len().max(1);
        for (dst, x) in zip(dst.chunks_exact_mut(n), x.chunks_exact(n)) {
            zip_map_loop([dst], [x, mean, rstd, gamma, beta], |_, [x, mean, rstd, gamma, beta]| {
                [(x - mean) * rstd * gamma + beta]
            });
        }
    }
}

struct BatchNormGrad<'a> {
    dx: &'a mut [f32],
    dgamma: &'a mut [f32],
    dbeta: &'a mut [f32],
    x: &'a [f32],
    dy: &'a [f32],
    mean: &'a [f32],
    rstd: &'a [f32],
    gamma: &'a [f32],
}

impl WithSimd for BatchNormGrad<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dx, dgamma, dbeta, x, dy, mean, rstd, gamma } = self;
        let n = gamma.len().max(1);
        let count = (x.len() / n) as f32;
        dgamma.fill(0.0);
        dbeta.fill(0.0);
        for (x, dy) in zip(x.chunks_exact(n), dy.chunks_exact(n)) {
            zip_map_loop([dgamma, dbeta], [x, dy, mean, rstd], |[dgamma, dbeta], [x, dy, mean, rstd]| {
                [dgamma + dy * ((x - mean) * rstd), dbeta + dy]
            });
        }
        for (dx, (x, dy)) in zip(dx.chunks_exact_mut(n), zip(x.chunks_exact(n), dy.chunks_exact(n))) {
            zip_map_loop(
                [dx],
                [x, dy, mean, rstd, gamma, dgamma, dbeta],
                |_, [x, dy, mean, rstd, gamma, dgamma, dbeta]| {
                    [gamma * rstd * (dy - dbeta / count - (x - mean) * rstd * dgamma / count)]
                },
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::testing::{assert_close, floats};

    const EPSILON: f32 = 1e-3;

    /// `x` normalised over groups of elements, `group(i)` being the one of element `i`; and each group's mean
    /// and reciprocal deviation.
    fn normalised(x: &[f64], groups: usize, group: impl Fn(usize) -> usize) -> (Vec<f64>, Vec<[f64; 2]>) {
        let (mut count, mut moments) = (vec![0.0; groups], vec![[0.0; 2]; groups]);
        for (i, x) in x.iter().enumerate() {
            count[group(i)] += 1.0;
            moments[group(i)][0] += x;
        }
        (0..groups).for_each(|g| moments[g][0] /= count[g]);
        for (i, x) in x.iter().enumerate() {
            moments[group(i)][1] += (x - moments[group(i)][0]).powi(2) / count[group(i)];
        }
        moments.iter_mut().for_each(|m| m[1] = 1.0 / (m[1] + f64::from(EPSILON)).sqrt());
        (
            x.iter().enumerate().map(|(i, x)| (x - moments[group(i)][0]) * moments[group(i)][1]).collect(),
            moments,
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn agree_with_f64(rows in 2usize..9, n in 2usize..40, seed: u32, columns: bool) {
            let (x, dy, gamma, beta) = (floats(rows * n, seed.into()), floats(rows * n, 1), floats(n, 2), floats(n, 3));
            let x64: Vec<f64> = x.iter().map(|&x| x.into()).collect();
            let groups = if columns { n } else { rows };
            let group = |i| if columns { i % n } else { i / n };
            let (hat, moments) = normalised(&x64, groups, group);
            let loss = |x: &[f64]| -> f64 {
                let hat = normalised(x, groups, group).0;
                hat.iter().enumerate().map(|(i, hat)| hat * f64::from(gamma[i % n]) * f64::from(dy[i])).sum()
            };

            let [mut y, mut dx] = [(); 2].map(|()| vec![f32::NAN; rows * n]);
            let [mut mean, mut rstd] = [(); 2].map(|()| vec![f32::NAN; groups]);
            let [mut dgamma, mut dbeta] = [(); 2].map(|()| vec![f32::NAN; n]);
            if columns {
                let mut variance = vec![f32::NAN; n];
                column_moments(&mut mean, &mut variance, &x);
                reciprocal_stddev(&mut rstd, &variance, EPSILON);
                batch_norm(&mut y, &x, [&mean, &rstd], [&gamma, &beta]);
                batch_norm_grad(&mut dx, [&mut dgamma, &mut dbeta], &x, &dy, [&mean, &rstd], &gamma);
            } else {
                layer_norm(&mut y, [&mut mean, &mut rstd], &x, [&gamma, &beta], EPSILON);
                layer_norm_grad(&mut dx, [&mut dgamma, &mut dbeta], &x, &dy, [&mean, &rstd], &gamma);
            }
            // Two elements may lie so close that the deviation is mostly epsilon's.
            assert_close(&mean, moments.iter().map(|m| m[0]), 4.0);
            assert_close(&rstd, moments.iter().map(|m| m[1]), 40.0);
            let want = |i: usize| hat[i] * f64::from(gamma[i % n]) + f64::from(beta[i % n]);
            assert_close(&y, (0..rows * n).map(want), 100.0);
            let column = |term: &dyn Fn(usize) -> f64| -> Vec<f64> {
                (0..n).map(|j| (0..rows).map(|r| term(r * n + j)).sum()).collect()
            };
            assert_close(&dgamma, column(&|i| hat[i] * f64::from(dy[i])), 200.0);
            assert_close(&dbeta, column(&|i| f64::from(dy[i])), 30.0);
            for i in 0..rows * n {
                let h = 1e-6;
                let at = |h| {
                    let mut x = x64.clone();
                    x[i] += h;
                    loss(&x)
                };
                let slope = (at(h) - at(-h)) / (2.0 * h);
                let error = (f64::from(dx[i]) - slope).abs();
                prop_assert!(error < 1e-3 * (1.0 + slope.abs()), "{} {}", dx[i], slope);
            }
        }
    }
}
