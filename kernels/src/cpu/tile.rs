//! Register tiles: the inner loops of products and convolutions, and the division of a row into vectors.
//!
//! This module works on rows of floats and must not depend on images. The terms of each element of a result
//! are added in order, whatever the vector width and the size of the tile. If the instruction set has fused
//! multiply-add, it is used.

// With iterators, the compiler would keep a tile in memory instead of registers, which is five times slower.
#![allow(clippy::needless_range_loop)]

use pulp::Simd;

/// The number of rows in a tile. Six rows of four AVX-512 vectors (or two AVX2 vectors), together with the
/// numbers that they are multiplied with, fill the registers and hide the latency of the multiply-add.
pub(super) const ROWS: usize = 6;

/// Work on the columns of a matrix. [`for_columns`] calls it for a few vectors of columns at a time.
pub(super) trait Columns<S: Simd> {
    /// Works on the columns `col..col + len`, which are `V` whole vectors. If `PARTIAL` is true, the columns
    /// are a part of one vector, and `V` is 1.
    fn run<const V: usize, const PARTIAL: bool>(&mut self, simd: S, col: usize, len: usize);
}

/// Calls [`Columns::run`] for all `width` columns, with as few calls as the registers allow.
#[inline(always)]
pub(super) fn for_columns<S: Simd>(simd: S, width: usize, work: &mut impl Columns<S>) {
    let lanes = S::F32_LANES;
    let mut col = 0;
    if S::REGISTER_COUNT >= 32 {
        while width - col >= 4 * lanes {
            work.run::<4, false>(simd, col, 4 * lanes);
            col += 4 * lanes;
        }
    }
    while width - col >= 2 * lanes {
        work.run::<2, false>(simd, col, 2 * lanes);
        col += 2 * lanes;
    }
    if width - col >= lanes {
        work.run::<1, false>(simd, col, lanes);
        col += lanes;
    }
    if col < width {
        work.run::<1, true>(simd, col, width - col);
    }
}

/// Returns the elements of `x` as `V` vectors. They fill the vectors, or a part of one vector if `PARTIAL`
/// is true.
#[inline(always)]
pub(super) fn load<S: Simd, const V: usize, const PARTIAL: bool>(simd: S, x: &[f32]) -> [S::f32s; V] {
    if PARTIAL {
        return [simd.partial_load_f32s(x); V];
    }
    let (vectors, _) = S::as_simd_f32s(x);
    *vectors.first_chunk().expect("as many vectors as columns")
}

/// Stores vectors to `x`, as the reverse of [`load`].
#[inline(always)]
pub(super) fn store<S: Simd, const V: usize, const PARTIAL: bool>(
    simd: S,
    x: &mut [f32],
    vectors: [S::f32s; V],
) {
    if PARTIAL {
        return simd.partial_store_f32s(x, vectors[0]);
    }
    let (x, _) = S::as_mut_simd_f32s(x);
    *x.first_chunk_mut().expect("as many vectors as columns") = vectors;
}

/// Computes `tile[p] += Σ_q x[p][q] · w[q, col..col + len]`, where `w` is `[x[p].len(), width]`, row-major.
#[inline(always)]
pub(super) fn multiply<S: Simd, const P: usize, const V: usize, const PARTIAL: bool>(
    simd: S,
    tile: &mut [[S::f32s; V]; P],
    x: [&[f32]; P],
    w: &[f32],
    width: usize,
    (col, len): (usize, usize),
) {
    // All slices are cut to one length, so that the loop needs no bounds checks.
    let count = x[0].len();
    let mut x = x;
    for p in 0..P {
        x[p] = &x[p][..count];
    }
    for (q, w) in w.chunks_exact(width).enumerate().take(count) {
        let w = load::<S, V, PARTIAL>(simd, &w[col..col + len]);
        for p in 0..P {
            let x = simd.splat_f32s(x[p][q]);
            for v in 0..V {
                tile[p][v] = simd.mul_add_e_f32s(x, w[v], tile[p][v]);
            }
        }
    }
}

/// Computes the same as [`multiply`], where each `x[p]` has `R` elements. Since `R` is a constant, the
/// compiler can unroll the loop.
#[inline(always)]
pub(super) fn multiply_short<S: Simd, const P: usize, const V: usize, const PARTIAL: bool, const R: usize>(
    simd: S,
    tile: &mut [[S::f32s; V]; P],
    x: [&[f32; R]; P],
    w: &[f32],
    width: usize,
    (col, len): (usize, usize),
) {
    for q in 0..R {
        let w = load::<S, V, PARTIAL>(simd, &w[q * width + col..][..len]);
        for p in 0..P {
            let x = simd.splat_f32s(x[p][q]);
            for v in 0..V {
                tile[p][v] = simd.mul_add_e_f32s(x, w[v], tile[p][v]);
            }
        }
    }
}

/// Replaces each element `x` of the tile with `max(x, 0)`, like [`Unary::Relu`](super::unary::Unary::Relu).
#[inline(always)]
pub(super) fn rectify<S: Simd, const P: usize, const V: usize>(simd: S, tile: &mut [[S::f32s; V]; P]) {
    let zero = simd.splat_f32s(0.0);
    for p in 0..P {
        for v in 0..V {
            // `max` is not used, since it may lose a NaN.
            let y = tile[p][v];
            tile[p][v] = simd.select_f32s(simd.less_than_f32s(y, zero), zero, y);
        }
    }
}

/// Computes the same as [`multiply`] for a left-hand matrix that is stored transposed: `tile[p] += Σ_q x[q,
/// at + p] · w[q, col..col + len]`, where `x` is `[_, stride]`, row-major.
#[inline(always)]
pub(super) fn multiply_transposed<S: Simd, const P: usize, const V: usize, const PARTIAL: bool>(
    simd: S,
    tile: &mut [[S::f32s; V]; P],
    (x, stride, at): (&[f32], usize, usize),
    w: &[f32],
    width: usize,
    (col, len): (usize, usize),
) {
    for (x, w) in x.chunks_exact(stride).zip(w.chunks_exact(width)) {
        let w = load::<S, V, PARTIAL>(simd, &w[col..col + len]);
        let x: &[f32; P] = x[at..].first_chunk().expect("the tile lies inside the matrix");
        for p in 0..P {
            let x = simd.splat_f32s(x[p]);
            for v in 0..V {
                tile[p][v] = simd.mul_add_e_f32s(x, w[v], tile[p][v]);
            }
        }
    }
}
