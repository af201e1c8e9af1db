//! Sums and maxima of one row, for kernels that already run inside [`dispatch`](super::dispatch::dispatch).
//!
//! The order of a sum is the same on every instruction set: element `i` is added to partial sum `i % 16`, and
//! the partial sums are added in order.

// With iterators over an array of slices, the compiler would generate several functions for each closure, and
// inline them only afterwards.
#![allow(clippy::needless_range_loop)]

const LANES: usize = 16;

/// Returns the sum over all `i` of `term([rows[0][i], rows[1][i], …])`. The rows must have the same length.
#[inline(always)]
pub(super) fn row_sum<const R: usize>(rows: [&[f32]; R], term: impl Fn([f32; R]) -> f32) -> f32 {
    partial_sums::<LANES, R>(rows, term).iter().sum()
}

/// Returns `L` partial sums of the terms that [`row_sum`] adds: sum `l` adds every `L`th term, beginning
/// with term `l`.
#[inline(always)]
pub(super) fn partial_sums<const L: usize, const R: usize>(
    rows: [&[f32]; R],
    term: impl Fn([f32; R]) -> f32,
) -> [f32; L] {
    let (mut chunks, mut tails): ([&[[f32; L]]; R], [&[f32]; R]) = ([&[]; R], [&[]; R]);
    for k in 0..R {
        (chunks[k], tails[k]) = rows[k].as_chunks();
    }
    let mut partial = [0f32; L];
    for i in 0..chunks[0].len() {
        let mut chunk = [&[0.0; L]; R];
        for k in 0..R {
            chunk[k] = &chunks[k][i];
        }
        for lane in 0..L {
            let mut x = [0.0; R];
            for k in 0..R {
                x[k] = chunk[k][lane];
            }
            partial[lane] += term(x);
        }
    }
    for lane in 0..tails[0].len() {
        let mut x = [0.0; R];
        for k in 0..R {
            x[k] = tails[k][lane];
        }
        partial[lane] += term(x);
    }
    partial
}

/// Returns the largest element of the row, or −∞ if the row is empty. The result may ignore a NaN, because
/// callers only subtract the result from exponents, to keep exponentials in range.
#[inline(always)]
pub(super) fn row_max(row: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (chunks, tail) = row.as_chunks::<LANES>();
    let mut partial = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            partial[lane] = larger(partial[lane], chunk[lane]);
        }
    }
    // The two halves are compared with each other, so that the comparisons are vectorised.
    let mut len = LANES / 2;
    while len > 0 {
        for lane in 0..len {
            partial[lane] = larger(partial[lane], partial[lane + len]);
        }
        len /= 2;
    }
    tail.iter().copied().fold(partial[0], larger)
}
