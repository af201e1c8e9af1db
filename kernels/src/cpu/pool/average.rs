//! The mean of each window, and its gradient. This module must not depend on layers.

use std::iter::zip;

use pulp::{Simd, WithSimd};

use super::Pool2d;
use crate::cpu::dispatch::{dispatch, zip_map_loop};
use crate::cpu::threads::{Threads, share_rows};

/// Computes the mean of each channel in each window: `dst` is `[n, ho, wo, c]`, `x` is `[n, h, w, c]`.
///
/// # Panics
/// If a slice does not have the length that `pool` requires.
#[track_caller]
pub fn average_pool(dst: &mut [f32], x: &[f32], pool: &Pool2d, threads: Threads) {
    pool.expect(x, dst);
    let (before, after) = pool.image();
    share_rows([(dst, after)], pool.images, pool.tasks(threads), &|[dst], images| {
        dispatch(AveragePool { dst, x: &x[images.start * before..images.end * before], pool });
    });
}

struct AveragePool<'a> {
    dst: &'a mut [f32],
    x: &'a [f32],
    pool: &'a Pool2d,
}

impl WithSimd for AveragePool<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dst, x, pool } = self;
        let (before, after) = pool.image();
        for (dst, x) in zip(dst.chunks_exact_mut(after.max(1)), x.chunks_exact(before.max(1))) {
            pool.for_each_window(|at, pixels| {
                let dst = &mut dst[at..at + pool.channels];
                dst.fill(0.0);
                for (_, at) in pixels.each() {
                    zip_map_loop([dst], [&x[at]], |[sum], [x]| [sum + x]);
                }
                let count = (pixels.rows * pixels.cols) as f32;
                zip_map_loop([dst], [], |[sum], []| [sum / count]);
            });
        }
    }
}

/// Computes the gradient of [`average_pool`]: `dst` is `[n, h, w, c]`, and `dy` is the gradient of the
/// output.
///
/// # Panics
/// If a slice does not have the length that `pool` requires.
#[track_caller]
pub fn average_pool_grad(dst: &mut [f32], dy: &[f32], pool: &Pool2d, threads: Threads) {
    pool.expect(dst, dy);
    let (before, after) = pool.image();
    share_rows([(dst, before)], pool.images, pool.tasks(threads), &|[dst], images| {
        dispatch(AveragePoolGrad { dst, dy: &dy[images.start * after..images.end * after], pool });
    });
}

struct AveragePoolGrad<'a> {
    dst: &'a mut [f32],
    dy: &'a [f32],
    pool: &'a Pool2d,
}

impl WithSimd for AveragePoolGrad<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dst, dy, pool } = self;
        let (before, after) = pool.image();
        for (dst, dy) in zip(dst.chunks_exact_mut(before.max(1)), dy.chunks_exact(after.max(1))) {
            dst.fill(0.0);
            pool.for_each_window(|at, pixels| {
                let dy = &dy[at..at + pool.channels];
                let count = (pixels.rows * pixels.cols) as f32;
                for (_, at) in pixels.each() {
                    zip_map_loop([&mut dst[at]], [dy], |[sum], [dy]| [sum + dy / count]);
                }
            });
        }
    }
}
