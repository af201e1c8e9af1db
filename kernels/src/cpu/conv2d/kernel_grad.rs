//! The gradient with respect to the kernel, `windowsᵀ · dy`. It is summed within each image first, and then
//! over the images in order.

use pulp::{Simd, WithSimd};

use super::geometry::Conv2d;
use crate::cpu::tile::{Columns, ROWS, for_columns, load, store};

/// The computation of as many rows of the kernel's gradient as `dst` holds, beginning with row `first` of
/// all `kh · kw · cin` rows. `x` has the padded images. `dst` must be 0 at the start.
pub(super) struct KernelGrad<'a> {
    pub dst: &'a mut [f32],
    pub x: &'a [f32],
    pub dy: &'a [f32],
    pub conv: &'a Conv2d,
    pub first: usize,
}

impl WithSimd for KernelGrad<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { dst, x, dy, conv, first } = self;
        let (run, cout) = (conv.run(), conv.cout);
        let images = x.chunks_exact(conv.padded_image().max(1));
        for (x, dy) in images.zip(dy.chunks_exact((conv.output_pixels() * cout).max(1))) {
            let (mut row, mut dst) = (first, &mut *dst);
            while !dst.is_empty() {
                // The rows of a tile read adjacent elements of the image, so a tile does not extend beyond a
                // line of the window.
                let (line, at) = (row / run, row % run);
                let x = &x[line * conv.line() + at..];
                let left = (dst.len() / cout).min(run - at);
                let rows = [ROWS, 3].into_iter().find(|&rows| rows <= left).unwrap_or(1);
                let (tile, rest) = dst.split_at_mut(rows * cout);
                match rows {
                    ROWS => for_columns(simd, cout, &mut Tile::<ROWS> { dst: tile, x, dy, conv }),
                    3 => for_columns(simd, cout, &mut Tile::<3> { dst: tile, x, dy, conv }),
                    _ => for_columns(simd, cout, &mut Tile::<1> { dst: tile, x, dy, conv }),
                }
                (row, dst) = (row + rows, rest);
            }
        }
    }
}

/// The computation of `Q` rows of the kernel's gradient from one image. `x` begins at the first element that
/// these rows read, which is in the first window.
struct Tile<'a, 'b, const Q: usize> {
    dst: &'b mut [f32],
    x: &'a [f32],
    dy: &'a [f32],
    conv: &'a Conv2d,
}

impl<S: Simd, const Q: usize> Columns<S> for Tile<'_, '_, Q> {
    #[inline(always)]
    fn run<const V: usize, const PARTIAL: bool>(&mut self, simd: S, col: usize, len: usize) {
        let Self { dst, x, dy, conv } = self;
        let Conv2d { cout, cin, vertical, horizontal, .. } = **conv;
        let mut tile = [[simd.splat_f32s(0.0); V]; Q];
        for (row, dy) in dy.chunks_exact(horizontal.output * cout).enumerate() {
            let mut at = row * vertical.stride * conv.line();
            for dy in dy.chunks_exact(cout) {
                let dy = load::<S, V, PARTIAL>(simd, &dy[col..col + len]);
                let x: &[f32; Q] = x[at..].first_chunk().expect("the window lies inside the image");
                for q in 0..Q {
                    let x = simd.splat_f32s(x[q]);
                    for v in 0..V {
                        tile[q][v] = simd.mul_add_e_f32s(x, dy[v], tile[q][v]);
                    }
                }
                at += horizontal.stride * cin;
            }
        }
        for (dst, row) in dst.chunks_exact_mut(cout).zip(tile) {
            let dst = &mut dst[col..col + len];
            let mut sum = load::<S, V, PARTIAL>(simd, dst);
            for v in 0..V {
                sum[v] = simd.add_f32s(sum[v], row[v]);
            }
            store::<S, V, PARTIAL>(simd, dst, sum);
        }
    }
}
