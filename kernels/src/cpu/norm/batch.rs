//! Batch norm, over all axes except the last, and its gradients. This module must not depend on the way in
//! which running statistics are maintained.

use std::iter::zip;

use pulp::{Simd, WithSimd};

use super::blocks::Blocks;
use crate::cpu::dispatch::{dispatch, zip_map, zip_map_loop};
use crate::cpu::shape::{expect_len, expect_rows};
use crate::cpu::threads::{ELEMENTS_PER_TASK, Threads, share_rows};

/// Computes `dst[j] = 1 / √(variance[j] + epsilon)`.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn reciprocal_stddev(dst: &mut [f32], variance: &[f32], epsilon: f32) {
    zip_map([dst], [variance], |_, [variance]| [1.0 / (variance + epsilon).sqrt()], Threads::One);
}

/// Computes batch norm: `dst[r, j] = (x[r, j] − mean[j]) · rstd[j] · gamma[j] + beta[j]`. In training, mean
/// and variance are those of the batch, from `column_moments`; in evaluation, they are running statistics.
/// `dst` and `x` are `[rows, n]`, all other slices are `[n]`. `rstd` is computed from the variance by
/// [`reciprocal_stddev`].
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn batch_norm(
    dst: &mut [f32],
    x: &[f32],
    [mean, rstd]: [&[f32]; 2],
    [gamma, beta]: [&[f32]; 2],
    threads: Threads,
) {
    expect_len("batch_norm: dst", dst, x.len());
    let (rows, n) = (expect_rows("batch_norm: x", x, gamma.len()), gamma.len());
    expect_len("batch_norm: beta", beta, gamma.len());
    expect_len("batch_norm: mean", mean, gamma.len());
    expect_len("batch_norm: rstd", rstd, gamma.len());
    share_rows([(dst, n)], rows, threads.tasks(x.len(), ELEMENTS_PER_TASK), &|[dst], part| {
        dispatch(BatchNorm { dst, x: &x[part.start * n..part.end * n], mean, rstd, gamma, beta });
    });
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

/// Computes the gradients of [`batch_norm`]. `mean` and `rstd` must have been computed from `x`. `dx` is
/// `[rows, n]`, `dgamma` and `dbeta` are `[n]`; `dy` is the gradient of the output.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn batch_norm_grad(
    dx: &mut [f32],
    [dgamma, dbeta]: [&mut [f32]; 2],
    [x, dy]: [&[f32]; 2],
    [mean, rstd]: [&[f32]; 2],
    gamma: &[f32],
    scratch: &mut [f32],
    threads: Threads,
) {
    let n = gamma.len();
    let rows = expect_rows("batch_norm_grad: x", x, n);
    expect_len("batch_norm_grad: dx", dx, x.len());
    expect_len("batch_norm_grad: dy", dy, x.len());
    expect_len("batch_norm_grad: dgamma", dgamma, n);
    expect_len("batch_norm_grad: dbeta", dbeta, n);
    expect_len("batch_norm_grad: mean", mean, n);
    expect_len("batch_norm_grad: rstd", rstd, n);
    let (blocks, tasks) = (Blocks::of(rows), threads.tasks(x.len(), ELEMENTS_PER_TASK));
    blocks.share([&mut *dgamma, &mut *dbeta], &mut [], rows, scratch, tasks, |[dgamma, dbeta], _, rows| {
        let all = rows.start * n..rows.end * n;
        dispatch(BatchNormSums { dgamma, dbeta, x: &x[all.clone()], dy: &dy[all], mean, rstd });
    });
    blocks.add_up([&mut *dgamma, &mut *dbeta], scratch);
    let (dgamma, dbeta, count) = (&*dgamma, &*dbeta, rows as f32);
    share_rows([(dx, n)], rows, tasks, &|[dx], part| {
        let all = part.start * n..part.end * n;
        let (x, dy) = (&x[all.clone()], &dy[all]);
        dispatch(BatchNormGrad { dx, dgamma, dbeta, x, dy, mean, rstd, gamma, count });
    });
}

struct BatchNormSums<'a> {
    dgamma: &'a mut [f32],
    dbeta: &'a mut [f32],
    x: &'a [f32],
    dy: &'a [f32],
    mean: &'a [f32],
    rstd: &'a [f32],
}

impl WithSimd for BatchNormSums<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dgamma, dbeta, x, dy, mean, rstd } = self;
        let n = mean.len().max(1);
        dgamma.fill(0.0);
        dbeta.fill(0.0);
        for (x, dy) in zip(x.chunks_exact(n), dy.chunks_exact(n)) {
            zip_map_loop([dgamma, dbeta], [x, dy, mean, rstd], |[dgamma, dbeta], [x, dy, mean, rstd]| {
                [dgamma + dy * ((x - mean) * rstd), dbeta + dy]
            });
        }
    }
}

/// The computation of some rows of `dx`. The whole matrix has `count` rows.
struct BatchNormGrad<'a> {
    dx: &'a mut [f32],
    dgamma: &'a [f32],
    dbeta: &'a [f32],
    x: &'a [f32],
    dy: &'a [f32],
    mean: &'a [f32],
    rstd: &'a [f32],
    gamma: &'a [f32],
    count: f32,
}

impl WithSimd for BatchNormGrad<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dx, dgamma, dbeta, x, dy, mean, rstd, gamma, count } = self;
        let n = gamma.len().max(1);
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
