//! Sums and maxima of one row, for kernels that are inside [`dispatch`](super::dispatch::dispatch) already.
//!
//! Order of a sum, on every instruction set: element `i` is added to partial sum `i % 16`; those are added in
//! order.

use std::array::from_fn;

const LANES: usize = 16;

/// `Σ term(i)` over the elements of rows of one length.
#[inline(always)]
pub(super) fn row_sum<const R: usize>(rows: [&[f32]; R], term: impl Fn([f32; R]) -> f32) -> f32 {
    let chunks = rows.map(|row| row.as_chunks::<LANES>());
    let len = chunks[0].0.len();
    let mut partial = [0f32; LANES];
    for i in 0..len {
        let row = chunks.map(|(row, _)| &row[i]);
        for lane in 0..LANES {
            partial[lane] += term(from_fn(|k| row[k][lane]));
        }
    }
    for (lane, partial) in partial.iter_mut().enumerate().take(chunks[0].1.len()) {
        *partial += term(chunks.map(|(_, tail)| tail[lane]));
    }
    partial.iter().sum()
}

/// The largest element, as a shift that keeps exponentials in range; it need not see a NaN. −∞ for none.
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
    // Halves, which are vectors too.
    let mut len = LANES / 2;
    while len > 0 {
        for lane in 0..len {
            partial[lane] = larger(partial[lane], partial[lane + len]);
        }
        len /= 2;
    }
    tail.iter().copied().fold(partial[0], larger)
}
