//! Layer norm, over the last axis, and its gradients. This module must not depend on the layers of a
//! network.

use std::iter::zip;

use pulp::{Simd, WithSimd};

use super::blocks::Blocks;
use crate::cpu::dispatch::{dispatch, zip_map_loop};
use crate::cpu::rows::row_sum;
use crate::cpu::shape::{expect_len, expect_rows};
use crate::cpu::threads::{ELEMENTS_PER_TASK, Threads, share_rows};

/// Computes `dst[r, j] = (x[r, j] − mean[r]) · rstd[r] · gamma[j] + beta[j]`, and also writes each row's
/// `mean` and `rstd = 1 / √(variance + epsilon)`. `dst` and `x` are `[rows, n]`, `gamma` and `beta` `[n]`,
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
    threads: Threads,
) {
    let rows = expect_rows("layer_norm: x", x, gamma.len());
    expect_len("layer_norm: dst", dst, x.len());
    expect_len("layer_norm: beta", beta, gamma.len());
    expect_len("layer_norm: mean", mean, rows);
    expect_len("layer_norm: rstd", rstd, rows);
    let (n, tasks) = (gamma.len(), threads.tasks(x.len(), ELEMENTS_PER_TASK));
    share_rows([(dst, n), (mean, 1), (rstd, 1)], rows, tasks, &|[dst, mean, rstd], part| {
        let x = &x[part.start * n..part.end * n];
        dispatch(LayerNorm { dst, mean, rstd, x, gamma, beta, epsilon });
    });
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

/// Computes the gradients of [`layer_norm`]: `dx` is `[rows, n]`, `dgamma` and `dbeta` are `[n]`. `dy` is
/// the gradient with respect to the output; `mean` and `rstd` must be as [`layer_norm`] wrote them.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn layer_norm_grad(
    dx: &mut [f32],
    [dgamma, dbeta]: [&mut [f32]; 2],
    [x, dy]: [&[f32]; 2],
    [mean, rstd]: [&[f32]; 2],
    gamma: &[f32],
    scratch: &mut [f32],
    threads: Threads,
) {
    let rows = expect_rows("layer_norm_grad: x", x, gamma.len());
    expect_len("layer_norm_grad: dx", dx, x.len());
    expect_len("layer_norm_grad: dy", dy, x.len());
    expect_len("layer_norm_grad: dgamma", dgamma, gamma.len());
    expect_len("layer_norm_grad: dbeta", dbeta, gamma.len());
    expect_len("layer_norm_grad: mean", mean, rows);
    expect_len("layer_norm_grad: rstd", rstd, rows);
    let (n, blocks) = (gamma.len(), Blocks::of(rows));
    let tasks = threads.tasks(x.len(), ELEMENTS_PER_TASK);
    blocks.share([&mut *dgamma, &mut *dbeta], dx, rows, scratch, tasks, |[dgamma, dbeta], dx, rows| {
        let all = rows.start * n..rows.end * n;
        let (x, dy, mean, rstd) = (&x[all.clone()], &dy[all], &mean[rows.clone()], &rstd[rows]);
        dispatch(LayerNormGrad { dx, dgamma, dbeta, x, dy, mean, rstd, gamma });
    });
    blocks.add_up([dgamma, dbeta], scratch);
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
