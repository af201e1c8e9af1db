//! The mean of each channel of a whole image, and its gradient. This module must not depend on layers.

use std::iter::zip;

use pulp::{Simd, WithSimd};

use crate::cpu::dispatch::{dispatch, zip_map_loop};
use crate::cpu::shape::expect_len;
use crate::cpu::threads::{ELEMENTS_PER_TASK, Threads, share_rows};

/// Computes the mean of each channel of each image: `dst` is `[n, c]`, `x` is `[n, pixels, c]`. The mean is
/// NaN if an image has no pixels.
///
/// # Panics
/// If the slices do not have these shapes.
#[track_caller]
pub fn global_average_pool(
    dst: &mut [f32],
    x: &[f32],
    [images, pixels, channels]: [usize; 3],
    threads: Threads,
) {
    expect_len("global_average_pool: dst", dst, images * channels);
    expect_len("global_average_pool: x", x, images * pixels * channels);
    if dst.is_empty() {
        return;
    }
    dst.fill(0.0);
    let (image, tasks) = (pixels * channels, threads.tasks(x.len(), ELEMENTS_PER_TASK));
    share_rows([(dst, channels)], images, tasks, &|[dst], part| {
        dispatch(GlobalAverage { dst, x: &x[part.start * image..part.end * image], pixels, channels });
    });
}

struct GlobalAverage<'a> {
    dst: &'a mut [f32],
    x: &'a [f32],
    pixels: usize,
    channels: usize,
}

impl WithSimd for GlobalAverage<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dst, x, pixels, channels } = self;
        for (dst, x) in zip(dst.chunks_exact_mut(channels), x.chunks_exact((pixels * channels).max(1))) {
            for x in x.chunks_exact(channels) {
                zip_map_loop([dst], [x], |[sum], [x]| [sum + x]);
            }
        }
        zip_map_loop([dst], [], |[sum], []| [sum / pixels as f32]);
    }
}

/// Computes the gradient of [`global_average_pool`]: `dst` is `[n, pixels, c]`, `dy` is `[n, c]`.
///
/// # Panics
/// If the slices do not have these shapes.
#[track_caller]
pub fn global_average_pool_grad(
    dst: &mut [f32],
    dy: &[f32],
    [images, pixels, channels]: [usize; 3],
    threads: Threads,
) {
    expect_len("global_average_pool_grad: dst", dst, images * pixels * channels);
    expect_len("global_average_pool_grad: dy", dy, images * channels);
    if !dst.is_empty() {
        let tasks = threads.tasks(dst.len(), ELEMENTS_PER_TASK);
        share_rows([(dst, pixels * channels)], images, tasks, &|[dst], part| {
            let dy = &dy[part.start * channels..part.end * channels];
            dispatch(GlobalAverageGrad { dst, dy, pixels, channels });
        });
    }
}

struct GlobalAverageGrad<'a> {
    dst: &'a mut [f32],
    dy: &'a [f32],
    pixels: usize,
    channels: usize,
}

impl WithSimd for GlobalAverageGrad<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dst, dy, pixels, channels } = self;
        for (dst, dy) in zip(dst.chunks_exact_mut(pixels * channels), dy.chunks_exact(channels)) {
            for dst in dst.chunks_exact_mut(channels) {
                zip_map_loop([dst], [dy], |_, [dy]| [dy / pixels as f32]);
            }
        }
    }
}
