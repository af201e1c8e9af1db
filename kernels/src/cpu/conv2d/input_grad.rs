//! The gradient with respect to the images: every output pixel adds its row of `dy · kernelᵀ` to its window.

use pulp::{Simd, WithSimd};

use super::geometry::Conv2d;
use crate::cpu::tile::{Columns, ROWS, for_columns, load, multiply, store};

/// Copies the kernel into the order in which [`InputGrad`] reads it: `dst[line, c, q] = kernel[line, q, c]`
/// for each line of a window.
pub(super) fn transpose_kernel(dst: &mut [f32], kernel: &[f32], conv: &Conv2d) {
    let (run, cout) = (conv.run(), conv.cout);
    for (dst, kernel) in dst.chunks_exact_mut(run * cout).zip(kernel.chunks_exact(run * cout)) {
        for (c, dst) in dst.chunks_exact_mut(run).enumerate() {
            for (dst, kernel) in dst.iter_mut().zip(kernel.chunks_exact(cout)) {
                *dst = kernel[c];
            }
        }
    }
}

/// A computation that adds to `dst` the gradient with respect to some padded images. `kernel` is the
/// transposed kernel.
pub(super) struct InputGrad<'a> {
    pub dst: &'a mut [f32],
    pub dy: &'a [f32],
    pub kernel: &'a [f32],
    pub conv: &'a Conv2d,
}

impl WithSimd for InputGrad<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { dst, dy, kernel, conv } = self;
        let cout = conv.cout;
        let images = dst.chunks_exact_mut(conv.padded_image().max(1));
        // The images are processed one by one, so that the division into tiles, and with it the order of
        // additions, is always the same.
        for (dst, dy) in images.zip(dy.chunks_exact((conv.output_pixels() * cout).max(1))) {
            let mut windows = conv.windows_from(0);
            let mut tiles = dy.chunks_exact(ROWS * cout);
            for dy in &mut tiles {
                let at = std::array::from_fn(|_| windows.next());
                let dy: [&[f32]; ROWS] = std::array::from_fn(|p| &dy[p * cout..(p + 1) * cout]);
                add_to_windows(simd, dst, at, dy, kernel, conv);
            }
            for dy in tiles.remainder().chunks_exact(cout) {
                add_to_windows(simd, dst, [windows.next()], [dy], kernel, conv);
            }
        }
    }
}

/// For each of `P` output pixels, adds its row of `dy · kernelᵀ` to its window. `at` contains the starts of
/// the windows.
#[inline(always)]
fn add_to_windows<S: Simd, const P: usize>(
    simd: S,
    dst: &mut [f32],
    at: [usize; P],
    dy: [&[f32]; P],
    kernel: &[f32],
    conv: &Conv2d,
) {
    let run = conv.run();
    for (line, kernel) in kernel.chunks_exact(run * conv.cout).enumerate() {
        let at = at.map(|at| at + line * conv.line());
        for_columns(simd, run, &mut Lines { dst, at, dy, kernel, run });
    }
}

/// The same line in the window of each of `P` output pixels.
struct Lines<'a, 'b, const P: usize> {
    dst: &'b mut [f32],
    at: [usize; P],
    dy: [&'a [f32]; P],
    kernel: &'a [f32],
    run: usize,
}

impl<S: Simd, const P: usize> Columns<S> for Lines<'_, '_, P> {
    #[inline(always)]
    fn run<const V: usize, const PARTIAL: bool>(&mut self, simd: S, col: usize, len: usize) {
        let mut tile = [[simd.splat_f32s(0.0); V]; P];
        multiply::<S, P, V, PARTIAL>(simd, &mut tile, self.dy, self.kernel, self.run, (col, len));
        // The pixels are added one after the other, since their windows may overlap.
        for (at, row) in self.at.into_iter().zip(tile) {
            let dst = &mut self.dst[at + col..at + col + len];
            let mut sum = load::<S, V, PARTIAL>(simd, dst);
            for v in 0..V {
                sum[v] = simd.add_f32s(sum[v], row[v]);
            }
            store::<S, V, PARTIAL>(simd, dst, sum);
        }
    }
}
