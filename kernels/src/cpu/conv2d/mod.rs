//! Convolutions of images (`[n, h, w, channels]`) with a kernel (`[kh, kw, cin, cout]`), and their
//! gradients. This module must not depend on layers. As everywhere in machine learning, the kernel is not
//! flipped: `y[i, oy, ox, o] = Σ x[i, oy · sh + ky − before, ox · sw + kx − before, c] · kernel[ky, kx, c,
//! o]`, with 0 beyond the edges. The bits of a result do not depend on `threads`. As in a matrix product,
//! they depend on the instruction set: on whether it has fused multiply-add and, for the gradient with
//! respect to the images, on the width of its vectors.

// Measured on one thread of a Zen 5 with the layers of a small MNIST network (batch 64, 3×3, no padding), in
// GFLOP/s: the first figure is for the tiles of this module, the second for `gemm` on windows that were
// copied out beforehand. 28×28×1 → 32: forward 120 and 165, kernel gradient 178 and 215. 13×13×32 → 64:
// forward 245 and 264, kernel gradient 256 and 256, image gradient 222 and 256. The figures for `gemm` leave
// out the time to copy the windows out or, for the image gradient, to add them back.

// With iterators, the compiler would keep a tile in memory instead of registers, which is five times slower.
#![allow(clippy::needless_range_loop)]

mod forward;
mod geometry;
mod input_grad;
mod kernel_grad;

pub use geometry::Conv2d;
use rayon::prelude::*;

use self::forward::Forward;
use self::input_grad::{InputGrad, transpose_kernel};
use self::kernel_grad::KernelGrad;
use super::dispatch::dispatch;
use super::epilogue::Epilogue;
use super::shape::expect_len;
use super::threads::Threads;
use super::tile;

/// Computes `dst = epilogue(x ∗ kernel)`, with the shapes of `conv`; `scratch` must have at least
/// [`forward_scratch`](Conv2d::forward_scratch) floats.
///
/// # Panics
/// If a slice does not have the length that `conv` requires.
#[track_caller]
pub fn conv2d(
    dst: &mut [f32],
    x: &[f32],
    kernel: &[f32],
    epilogue: Epilogue<'_>,
    conv: &Conv2d,
    scratch: &mut [f32],
    threads: Threads,
) {
    expect_len("conv2d: dst", dst, conv.output_len());
    expect_len("conv2d: x", x, conv.input_len());
    expect_len("conv2d: kernel", kernel, conv.kernel_len());
    if let Epilogue::Bias(bias) | Epilogue::BiasRelu(bias) = epilogue {
        expect_len("conv2d: bias", bias, conv.cout);
    }
    let tasks = tasks(conv, threads);
    let x = padded(x, conv, scratch, tasks);
    let pixels = band(conv.images * conv.output_pixels(), tasks).next_multiple_of(tile::ROWS);
    for_each_band(dst, pixels * conv.cout, tasks, &|band, dst| {
        dispatch(Forward { dst, x, kernel, conv, epilogue, first: band * pixels });
    });
}

/// Computes the gradient with respect to the images, for a [`conv2d`] without an epilogue. `dst` is
/// `[n, h, w, cin]`, and `dy` is the gradient of the output. `scratch` must have at least
/// [`input_grad_scratch`](Conv2d::input_grad_scratch) floats.
///
/// # Panics
/// If a slice does not have the length that `conv` requires.
#[track_caller]
pub fn conv2d_input_grad(
    dst: &mut [f32],
    dy: &[f32],
    kernel: &[f32],
    conv: &Conv2d,
    scratch: &mut [f32],
    threads: Threads,
) {
    expect_len("conv2d_input_grad: dst", dst, conv.input_len());
    expect_len("conv2d_input_grad: dy", dy, conv.output_len());
    expect_len("conv2d_input_grad: kernel", kernel, conv.kernel_len());
    expect_scratch(scratch, conv.input_grad_scratch());
    let tasks = tasks(conv, threads);
    let (transposed, padded) = scratch.split_at_mut(conv.kernel_len());
    transpose_kernel(transposed, kernel, conv);
    if conv.is_padded() {
        let padded = &mut padded[..conv.padded_len()];
        padded_input_grad(padded, dy, transposed, conv, tasks);
        crop(dst, padded, conv, tasks);
    } else {
        padded_input_grad(dst, dy, transposed, conv, tasks);
    }
}

/// Computes the gradient with respect to the padded images, from the transposed kernel.
fn padded_input_grad(dst: &mut [f32], dy: &[f32], kernel: &[f32], conv: &Conv2d, tasks: usize) {
    let images = band(conv.images, tasks);
    let dy_image = conv.output_pixels() * conv.cout;
    for_each_band(dst, images * conv.padded_image(), tasks, &|band, dst| {
        dst.fill(0.0);
        let count = dst.len() / conv.padded_image();
        let dy = &dy[band * images * dy_image..][..count * dy_image];
        dispatch(InputGrad { dst, dy, kernel, conv });
    });
}

/// Computes the gradient with respect to the kernel, for a [`conv2d`] without an epilogue. `dst` is
/// `[kh, kw, cin, cout]`, and `dy` is the gradient of the output. `scratch` must have at least
/// [`kernel_grad_scratch`](Conv2d::kernel_grad_scratch) floats.
///
/// # Panics
/// If a slice does not have the length that `conv` requires.
#[track_caller]
pub fn conv2d_kernel_grad(
    dst: &mut [f32],
    x: &[f32],
    dy: &[f32],
    conv: &Conv2d,
    scratch: &mut [f32],
    threads: Threads,
) {
    expect_len("conv2d_kernel_grad: dst", dst, conv.kernel_len());
    expect_len("conv2d_kernel_grad: x", x, conv.input_len());
    expect_len("conv2d_kernel_grad: dy", dy, conv.output_len());
    let tasks = tasks(conv, threads);
    let x = padded(x, conv, scratch, tasks);
    dst.fill(0.0);
    let rows = band(conv.vertical.window * conv.run(), tasks).next_multiple_of(tile::ROWS.min(conv.run()));
    for_each_band(dst, rows * conv.cout, tasks, &|band, dst| {
        dispatch(KernelGrad { dst, x, dy, conv, first: band * rows });
    });
}

/// Returns the number of tasks into which a convolution or one of its gradients is divided. There are
/// several tasks for each thread, since other work may delay a thread. A computation that takes less time
/// than waking a thread is a single task.
fn tasks(conv: &Conv2d, threads: Threads) -> usize {
    const FLOPS_PER_TASK: usize = 1 << 20;
    match threads {
        Threads::Pool(threads) if threads > 1 => (4 * threads).min(conv.flops() / FLOPS_PER_TASK).max(1),
        _ => 1,
    }
}

/// Returns the number of items that one task processes, if `tasks` tasks share `count` items.
fn band(count: usize, tasks: usize) -> usize {
    count.div_ceil(tasks).max(1)
}

/// Divides `dst` into parts of `band` elements, and calls `work` with the index and the elements of each
/// part. The calls run in parallel if there are several tasks.
fn for_each_band(dst: &mut [f32], band: usize, tasks: usize, work: &(dyn Fn(usize, &mut [f32]) + Sync)) {
    if tasks == 1 {
        dst.chunks_mut(band.max(1)).enumerate().for_each(|(i, dst)| work(i, dst));
    } else {
        dst.par_chunks_mut(band.max(1)).enumerate().for_each(|(i, dst)| work(i, dst));
    }
}

#[track_caller]
fn expect_scratch(scratch: &[f32], len: usize) {
    assert!(scratch.len() >= len, "conv2d: scratch has {} elements, expected at least {len}", scratch.len());
}

/// Copies the images to `scratch`, with zeros around them, and returns the copy. Returns the images
/// themselves if there is no padding.
#[track_caller]
fn padded<'a>(x: &'a [f32], conv: &Conv2d, scratch: &'a mut [f32], tasks: usize) -> &'a [f32] {
    expect_scratch(scratch, conv.forward_scratch());
    if !conv.is_padded() {
        return x;
    }
    let scratch = &mut scratch[..conv.padded_len()];
    let images = band(conv.images, tasks);
    let image = conv.vertical.input * conv.horizontal.input * conv.cin;
    for_each_band(scratch, images * conv.padded_image(), tasks, &|band, dst| {
        dst.fill(0.0);
        for (i, dst) in dst.chunks_exact_mut(conv.padded_image().max(1)).enumerate() {
            let x = &x[(band * images + i) * image..][..image];
            let lines = dst.chunks_exact_mut(conv.line()).skip(conv.vertical.before);
            for (dst, x) in lines.zip(x.chunks_exact((conv.horizontal.input * conv.cin).max(1))) {
                dst[conv.horizontal.before * conv.cin..][..x.len()].copy_from_slice(x);
            }
        }
    });
    scratch
}

/// Copies the images without the zeros that [`padded`] puts around them.
fn crop(dst: &mut [f32], padded: &[f32], conv: &Conv2d, tasks: usize) {
    let images = band(conv.images, tasks);
    let line = conv.horizontal.input * conv.cin;
    let image = conv.vertical.input * line;
    for_each_band(dst, images * image, tasks, &|band, dst| {
        for (i, dst) in dst.chunks_exact_mut(image.max(1)).enumerate() {
            let padded = &padded[(band * images + i) * conv.padded_image()..];
            let lines = padded.chunks_exact(conv.line()).skip(conv.vertical.before);
            for (dst, padded) in dst.chunks_exact_mut(line.max(1)).zip(lines) {
                dst.copy_from_slice(&padded[conv.horizontal.before * conv.cin..][..line]);
            }
        }
    });
}

#[cfg(test)]
mod tests;
