//! Transposes a block of a matrix. This module must not depend on products.

// With iterators, the compiler would keep a square in memory instead of registers.
#![allow(clippy::needless_range_loop)]

use pulp::Simd;

/// The destination of a transposed matrix.
pub(super) trait Target {
    /// Returns the elements `from..from + len` of row `row`.
    fn part(&mut self, row: usize, from: usize, len: usize) -> &mut [f32];
}

/// A slice, and the distance between the starts of two consecutive rows.
impl Target for (&mut [f32], usize) {
    #[inline(always)]
    fn part(&mut self, row: usize, from: usize, len: usize) -> &mut [f32] {
        &mut self.0[row * self.1 + from..][..len]
    }
}

/// Computes `dst[c, r] = src[r · src_stride + c]` for `r` in `0..rows`, `c` in `0..cols`.
#[inline(always)]
pub(super) fn transpose<S: Simd>(
    simd: S,
    dst: &mut impl Target,
    (src, src_stride): (&[f32], usize),
    rows: usize,
    cols: usize,
) {
    #[cfg(target_arch = "x86_64")]
    if let Some(&v4) = (&simd as &dyn std::any::Any).downcast_ref::<pulp::x86::V4>() {
        return avx512::transpose(v4, dst, (src, src_stride), rows, cols);
    }
    let _ = simd;
    /// The side of a square block, in elements. The source and destination of a block both fit into the
    /// first-level cache.
    const BLOCK: usize = 8;
    for row in (0..rows).step_by(BLOCK) {
        for col in (0..cols).step_by(BLOCK) {
            for c in col..cols.min(col + BLOCK) {
                let part = dst.part(c, row, BLOCK.min(rows - row));
                part.iter_mut().zip(row..).for_each(|(dst, r)| *dst = src[r * src_stride + c]);
            }
        }
    }
}

/// Transposes a block in squares; a square is 16 vectors of 16 floats each.
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::Target;
    use pulp::x86::V4;
    use pulp::{Simd, cast, f32x16};

    const SIDE: usize = 16;

    #[inline(always)]
    pub fn transpose(
        simd: V4,
        dst: &mut impl Target,
        (src, src_stride): (&[f32], usize),
        rows: usize,
        cols: usize,
    ) {
        for col in (0..cols).step_by(SIDE) {
            let width = SIDE.min(cols - col);
            for row in (0..rows).step_by(SIDE) {
                let height = SIDE.min(rows - row);
                let src = |r: usize| &src[(row + r) * src_stride + col..][..width];
                if width == SIDE && height == SIDE {
                    let mut square = [simd.splat_f32s(0.0); SIDE];
                    for r in 0..SIDE {
                        square[r] = cast(*src(r).first_chunk::<SIDE>().expect("a whole row"));
                    }
                    let square = transpose_square(simd, square);
                    for c in 0..SIDE {
                        let dst = dst.part(col + c, row, SIDE).first_chunk_mut::<SIDE>();
                        *dst.expect("a whole column") = cast(square[c]);
                    }
                } else {
                    let mut square = [simd.splat_f32s(0.0); SIDE];
                    for (r, square) in square.iter_mut().enumerate().take(height) {
                        *square = simd.partial_load_f32s(src(r));
                    }
                    let square = transpose_square(simd, square);
                    for (c, &square) in square.iter().enumerate().take(width) {
                        simd.partial_store_f32s(dst.part(col + c, row, height), square);
                    }
                }
            }
        }
    }

    /// Returns the transposed square. Each of the four steps doubles the number of elements of one column
    /// that are in the same vector.
    #[inline(always)]
    fn transpose_square(simd: V4, x: [f32x16; SIDE]) -> [f32x16; SIDE] {
        let f = simd.avx512f;
        // The elements of pairs of rows are interleaved.
        let mut pairs = x;
        for i in (0..SIDE).step_by(2) {
            let (a, b) = (cast(x[i]), cast(x[i + 1]));
            pairs[i] = cast(f._mm512_unpacklo_ps(a, b));
            pairs[i + 1] = cast(f._mm512_unpackhi_ps(a, b));
        }
        // The two pairs in each group of four rows are joined. Now the four floats in 128-bit lane `l` of
        // vector `i` are from column `4 l + i % 4`.
        let mut fours = x;
        for i in (0..SIDE).step_by(4) {
            for half in 0..2 {
                let (a, b) = (cast(pairs[i + half]), cast(pairs[i + 2 + half]));
                fours[i + 2 * half] = cast(f._mm512_unpacklo_pd(a, b));
                fours[i + 2 * half + 1] = cast(f._mm512_unpackhi_pd(a, b));
            }
        }
        // Elements of groups of eight rows, and then of all sixteen rows, are brought together.
        let mut eights = x;
        for i in (0..SIDE).step_by(8) {
            for column in i..i + 4 {
                let (a, b) = (cast(fours[column]), cast(fours[column + 4]));
                eights[column] = cast(f._mm512_shuffle_f32x4::<0b10_00_10_00>(a, b));
                eights[column + 4] = cast(f._mm512_shuffle_f32x4::<0b11_01_11_01>(a, b));
            }
        }
        let mut all = x;
        for column in 0..8 {
            let (a, b) = (cast(eights[column]), cast(eights[column + 8]));
            all[column] = cast(f._mm512_shuffle_f32x4::<0b10_00_10_00>(a, b));
            all[column + 8] = cast(f._mm512_shuffle_f32x4::<0b11_01_11_01>(a, b));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use pulp::WithSimd;

    use super::*;
    use crate::cpu::tests::{each_arch, floats};

    struct Transpose<'a>(&'a mut [f32], &'a [f32], usize, usize);

    impl WithSimd for Transpose<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let Self(dst, src, rows, cols) = self;
            transpose(simd, &mut (dst, rows + 2), (src, cols + 3), rows, cols);
        }
    }

    #[test]
    fn every_instruction_set_transposes() {
        for (rows, cols) in
            [(0, 0), (1, 1), (16, 16), (3, 40), (33, 15), (32, 48), (20, 17), (5, 16), (16, 5)]
        {
            let src = floats(rows * (cols + 3), 1);
            for arch in each_arch() {
                let mut dst = vec![f32::NAN; cols * (rows + 2)];
                arch.dispatch(Transpose(&mut dst, &src, rows, cols));
                for (i, &x) in dst.iter().enumerate() {
                    let (c, r) = (i / (rows + 2), i % (rows + 2));
                    assert!(
                        if r < rows { x == src[r * (cols + 3) + c] } else { x.is_nan() },
                        "{rows}x{cols} {r},{c}"
                    );
                }
            }
        }
    }
}
