//! The maximum in each window, and its gradient. This module must not depend on layers.

use std::iter::zip;

use pulp::{Simd, WithSimd};

use super::Pool2d;
use crate::cpu::dispatch::dispatch;
use crate::cpu::shape::expect_len;
use crate::cpu::threads::{Strided, Threads, share, share_rows};

/// Computes the maximum of each channel in each window: `dst` is `[n, ho, wo, c]`, `x` is `[n, h, w, c]`.
/// The gradient needs to know which pixel had the maximum: `argmax`, also `[n, ho, wo, c]`, gets the number
/// of this pixel within its window. Pixels are counted row by row, including those in the padding.
///
/// If several pixels have the maximum, the first one counts. If the window contains a NaN, the maximum is
/// NaN.
///
/// # Panics
/// If a slice does not have the length that `pool` requires.
#[track_caller]
pub fn max_pool(dst: &mut [f32], argmax: &mut [u8], x: &[f32], pool: &Pool2d, threads: Threads) {
    pool.expect(x, dst);
    expect_len("max_pool: argmax", argmax, dst.len());
    let (before, after) = pool.image();
    let written = (Strided { data: dst, width: after }, Strided { data: argmax, width: after });
    share(written, 0..pool.images, pool.tasks(threads), &|(dst, argmax), images| {
        let x = &x[images.start * before..images.end * before];
        dispatch(MaxPool { dst: dst.data, argmax: argmax.data, x, pool });
    });
}

struct MaxPool<'a> {
    dst: &'a mut [f32],
    argmax: &'a mut [u8],
    x: &'a [f32],
    pool: &'a Pool2d,
}

impl WithSimd for MaxPool<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dst, argmax, x, pool } = self;
        let (before, after) = pool.image();
        let outputs = zip(dst.chunks_exact_mut(after.max(1)), argmax.chunks_exact_mut(after.max(1)));
        for ((dst, argmax), x) in zip(outputs, x.chunks_exact(before.max(1))) {
            pool.for_each_window(|at, pixels| {
                let dst = &mut dst[at..at + pool.channels];
                let argmax = &mut argmax[at..at + pool.channels];
                if let Some(four) = pixels.two_by_two() {
                    return max_of_four(dst, argmax, four.map(|at| &x[at]));
                }
                dst.fill(f32::NEG_INFINITY);
                let mut first = true;
                for (number, at) in pixels.each() {
                    let x = &x[at];
                    for ((max, argmax), &x) in zip(zip(&mut *dst, &mut *argmax), x) {
                        // The first pixel is always taken, because the maximum may be −∞.
                        let larger = first | exceeds(x, *max);
                        *max = if larger { x } else { *max };
                        *argmax = if larger { number } else { *argmax };
                    }
                    first = false;
                }
            });
        }
    }
}

/// Returns true if `x` replaces `max` as the maximum, that is, if `x` is greater or NaN.
#[inline(always)]
fn exceeds(x: f32, max: f32) -> bool {
    (x > max) | x.is_nan()
}

#[inline(always)]
fn max_of_four(dst: &mut [f32], argmax: &mut [u8], x: [&[f32]; 4]) {
    let len = dst.len();
    let (argmax, x) = (&mut argmax[..len], x.map(|x| &x[..len]));
    for i in 0..len {
        let (mut max, mut number) = (x[0][i], 0u32);
        for (k, x) in (1u32..).zip(&x[1..]) {
            let larger = exceeds(x[i], max);
            max = if larger { x[i] } else { max };
            number = if larger { k } else { number };
        }
        (dst[i], argmax[i]) = (max, number as u8);
    }
}

/// Computes the gradient of [`max_pool`]: `dst` is `[n, h, w, c]`, `dy` is the gradient of the output, and
/// `argmax` was written by [`max_pool`]. An entry of `argmax` is ignored if its pixel lies outside the
/// image.
///
/// # Panics
/// If a slice does not have the length that `pool` requires.
#[track_caller]
pub fn max_pool_grad(dst: &mut [f32], dy: &[f32], argmax: &[u8], pool: &Pool2d, threads: Threads) {
    pool.expect(dst, dy);
    expect_len("max_pool_grad: argmax", argmax, dy.len());
    let (before, after) = pool.image();
    share_rows([(dst, before)], pool.images, pool.tasks(threads), &|[dst], images| {
        let images = images.start * after..images.end * after;
        dispatch(MaxPoolGrad { dst, dy: &dy[images.clone()], argmax: &argmax[images], pool });
    });
}

struct MaxPoolGrad<'a> {
    dst: &'a mut [f32],
    dy: &'a [f32],
    argmax: &'a [u8],
    pool: &'a Pool2d,
}

impl WithSimd for MaxPoolGrad<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dst, dy, argmax, pool } = self;
        let disjoint = pool.is_disjoint();
        let (before, after) = pool.image();
        let outputs = zip(dy.chunks_exact(after.max(1)), argmax.chunks_exact(after.max(1)));
        for (dst, (dy, argmax)) in zip(dst.chunks_exact_mut(before.max(1)), outputs) {
            dst.fill(0.0);
            pool.for_each_window(|at, pixels| {
                let (dy, argmax) = (&dy[at..at + pool.channels], &argmax[at..at + pool.channels]);
                for (number, at) in pixels.each() {
                    let dst = &mut dst[at];
                    for (dst, (&dy, &argmax)) in zip(dst, zip(dy, argmax)) {
                        let share = if u32::from(argmax) == u32::from(number) { dy } else { 0.0 };
                        *dst = if disjoint { share } else { *dst + share };
                    }
                }
            });
        }
    }
}
