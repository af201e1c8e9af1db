//! The convolution itself, computed as the product of a matrix of windows and the kernel. The matrix of
//! windows is never stored. Instead, each line of a window is read from the image, where it is contiguous,
//! and each element of the line is multiplied with a row of the kernel.

use pulp::{Simd, WithSimd};

use super::geometry::Conv2d;
use crate::cpu::epilogue::Epilogue;
use crate::cpu::tile::{Columns, ROWS, for_columns, load, multiply, multiply_short, rectify, store};

/// The computation of the output pixels in `dst`. The first of them is pixel `first` of all `n · ho · wo`
/// pixels; `x` has the padded images.
pub(super) struct Forward<'a> {
    pub dst: &'a mut [f32],
    pub x: &'a [f32],
    pub kernel: &'a [f32],
    pub conv: &'a Conv2d,
    pub epilogue: Epilogue<'a>,
    pub first: usize,
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { dst, x, kernel, conv, epilogue, first } = self;
        let mut windows = conv.windows_from(first);
        let mut tiles = dst.chunks_exact_mut(ROWS * conv.cout);
        for dst in &mut tiles {
            let x: [&[f32]; ROWS] = std::array::from_fn(|_| &x[windows.next()..]);
            for_columns(simd, conv.cout, &mut Tile { dst, x, kernel, conv, epilogue });
        }
        for dst in tiles.into_remainder().chunks_exact_mut(conv.cout) {
            let x = [&x[windows.next()..]];
            for_columns(simd, conv.cout, &mut Tile { dst, x, kernel, conv, epilogue });
        }
    }
}

/// The computation of `P` output pixels. Each slice in `x` begins at the window of one of these pixels.
struct Tile<'a, 'b, const P: usize> {
    dst: &'b mut [f32],
    x: [&'a [f32]; P],
    kernel: &'a [f32],
    conv: &'a Conv2d,
    epilogue: Epilogue<'a>,
}

impl<S: Simd, const P: usize> Columns<S> for Tile<'_, '_, P> {
    #[inline(always)]
    fn run<const V: usize, const PARTIAL: bool>(&mut self, simd: S, col: usize, len: usize) {
        let Self { dst, x, kernel, conv, epilogue } = self;
        let (cout, run, line) = (conv.cout, conv.run(), conv.line());
        let start = match epilogue {
            Epilogue::Bare => [simd.splat_f32s(0.0); V],
            Epilogue::Bias(bias) | Epilogue::BiasRelu(bias) => {
                load::<S, V, PARTIAL>(simd, &bias[col..col + len])
            }
        };
        let mut tile = [start; P];
        for (dy, kernel) in kernel.chunks_exact(run * cout).enumerate() {
            let (x, columns) = (Lines { starts: *x, offset: dy * line }, (col, len));
            match run {
                // In images with one channel, a line is so short that the loop must be unrolled to be fast.
                3 => multiply_short::<S, P, V, PARTIAL, 3>(simd, &mut tile, x.short(), kernel, cout, columns),
                5 => multiply_short::<S, P, V, PARTIAL, 5>(simd, &mut tile, x.short(), kernel, cout, columns),
                _ => multiply::<S, P, V, PARTIAL>(simd, &mut tile, x.long(run), kernel, cout, columns),
            }
        }
        if let Epilogue::BiasRelu(_) = epilogue {
            rectify(simd, &mut tile);
        }
        for (dst, row) in dst.chunks_exact_mut(cout).zip(tile) {
            store::<S, V, PARTIAL>(simd, &mut dst[col..col + len], row);
        }
    }
}

/// One line of each of `P` windows. The line begins at `offset` in each slice of `starts`.
struct Lines<'a, const P: usize> {
    starts: [&'a [f32]; P],
    offset: usize,
}

impl<'a, const P: usize> Lines<'a, P> {
    #[inline(always)]
    fn long(self, run: usize) -> [&'a [f32]; P] {
        self.starts.map(|x| &x[self.offset..self.offset + run])
    }

    #[inline(always)]
    fn short<const R: usize>(self) -> [&'a [f32; R]; P] {
        let mut lines = [&[0.0; R]; P];
        for p in 0..P {
            lines[p] = self.starts[p][self.offset..].first_chunk().expect("the window lies in the image");
        }
        lines
    }
}
