//! Reductions of slices to one number. This module must not know what the numbers stand for.
//!
//! All instruction sets add in the same order. In a block of 4096 elements, element `i` is added to partial
//! sum `i % 64`, in `f32`. Each block's partial sums are added to 64 totals in `f64`; at the end, the totals
//! are added in order. So the bits depend only on the slice, and the rounding error does not grow with the
//! slice's length. A sum of squares uses `f64` throughout, so it is finite if all elements are finite.

use pulp::{Simd, WithSimd};

use super::dispatch::dispatch;
use super::rows::partial_sums;
use super::shape::expect_len;

/// The number of partial sums: four AVX-512 registers, enough to hide the latency of addition.
const LANES: usize = 64;
/// The number of elements in a block. The elements of one block are added in `f32`.
const BLOCK: usize = 4096;

/// Returns `Σ x[i]`; 0 for an empty slice.
pub fn sum(x: &[f32]) -> f32 {
    dispatch(Sum { inputs: [x], term: |[x]: [f32; 1]| x }) as f32
}

/// Returns `Σ x[i] / len`; NaN for an empty slice.
pub fn mean(x: &[f32]) -> f32 {
    (dispatch(Sum { inputs: [x], term: |[x]: [f32; 1]| x }) / x.len() as f64) as f32
}

/// Returns `Σ a[i] · b[i]`; 0 for empty slices.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    expect_len("dot: b", b, a.len());
    dispatch(Sum { inputs: [a, b], term: |[a, b]: [f32; 2]| a * b }) as f32
}

/// Returns `Σ x[i]²`; 0 for an empty slice.
pub fn sum_of_squares(x: &[f32]) -> f64 {
    dispatch(SumOfSquares { x })
}

/// Returns the sum of `term` over the elements of slices of equal length.
#[track_caller]
pub(super) fn total<const R: usize>(inputs: [&[f32]; R], term: impl Fn([f32; R]) -> f32) -> f64 {
    for x in inputs {
        expect_len("sum: slice", x, inputs[0].len());
    }
    dispatch(Sum { inputs, term })
}

/// Returns whether all elements are finite.
pub fn all_finite(x: &[f32]) -> bool {
    all_below(x, f32::INFINITY)
}

/// Returns true if the magnitudes of all elements are less than `bound`, and false if an element is a NaN.
/// The bound must be positive.
pub fn all_below(x: &[f32], bound: f32) -> bool {
    is_below(largest_magnitude(x), bound)
}

/// Returns the bits of the magnitude of a number. Those of a larger magnitude are a larger integer, and those
/// of a NaN are larger than those of infinity.
#[inline(always)]
pub(super) const fn magnitude(x: f32) -> u32 {
    x.abs().to_bits()
}

/// Returns the largest [`magnitude`] of the elements; 0 if there are none.
pub(super) fn largest_magnitude(x: &[f32]) -> u32 {
    dispatch(LargestMagnitude { x })
}

/// Returns whether a [`magnitude`] is less than `bound`, which must be positive.
pub(super) fn is_below(magnitude: u32, bound: f32) -> bool {
    debug_assert!(bound > 0.0, "the bound of magnitudes is {bound}, expected more than 0");
    magnitude < bound.to_bits()
}

/// Computes the sum of `term` over the elements of slices of equal length.
struct Sum<'a, F, const R: usize> {
    inputs: [&'a [f32]; R],
    term: F,
}

impl<F: Fn([f32; R]) -> f32, const R: usize> WithSimd for Sum<'_, F, R> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f64 {
        let Self { inputs, term } = self;
        let len = inputs[0].len();
        let mut totals = [0f64; LANES];
        let mut start = 0;
        while start < len {
            let end = len.min(start + BLOCK);
            let mut block = inputs;
            for x in &mut block {
                *x = &x[start..end];
            }
            let partial: [f32; LANES] = partial_sums(block, &term);
            for lane in 0..LANES {
                totals[lane] += f64::from(partial[lane]);
            }
            start = end;
        }
        totals.iter().sum()
    }
}

struct SumOfSquares<'a> {
    x: &'a [f32],
}

impl WithSimd for SumOfSquares<'_> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f64 {
        let square = |x: f32| f64::from(x) * f64::from(x);
        let (rows, tail) = self.x.as_chunks::<LANES>();
        let mut totals = [0f64; LANES];
        for row in rows {
            for lane in 0..LANES {
                totals[lane] += square(row[lane]);
            }
        }
        for (total, &x) in totals.iter_mut().zip(tail) {
            *total += square(x);
        }
        totals.iter().sum()
    }
}

/// Computes the largest magnitude of the elements, as the bits of a float without its sign. Compared as
/// integers, the bits of a finite number are less than those of infinity, and the bits of a NaN are greater.
struct LargestMagnitude<'a> {
    x: &'a [f32],
}

impl WithSimd for LargestMagnitude<'_> {
    type Output = u32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> u32 {
        // The maximum of integers does not depend on their order, so the compiler vectorises the loop. A
        // maximum of floats depends on the order, and the loop would not be vectorised.
        self.x.iter().fold(0, |largest, &x| largest.max(magnitude(x)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pulp::Arch;

    use super::*;
    use crate::cpu::tests::{assert_close, each_arch, floats};

    /// Draws lengths of slices: below 200 elements, around one block, or below three blocks.
    fn lengths() -> impl Strategy<Value = usize> {
        prop_oneof![0usize..200, BLOCK - 2..BLOCK + 100, 0..3 * BLOCK]
    }

    proptest! {
        #[test]
        fn agree_with_f64(len in lengths(), seed: u32) {
            let (a, b) = (floats(len, seed.into()), floats(len, 1));
            let sum64 = |f: &dyn Fn(usize) -> f64| (0..len).map(f).sum::<f64>();
            let (a64, b64) = (|i: usize| f64::from(a[i]), |i: usize| f64::from(b[i]));
            let scale = (len as f64).sqrt();
            assert_close(&[sum(&a)], [sum64(&a64)], scale);
            assert_close(&[dot(&a, &b)], [sum64(&|i| a64(i) * b64(i))], scale);
            let squares = sum64(&|i| a64(i) * a64(i));
            prop_assert!((sum_of_squares(&a) - squares).abs() <= 1e-12 * squares);
            if len > 0 {
                assert_close(&[mean(&a)], [sum64(&a64) / len as f64], 1.0);
            }
        }

        #[test]
        fn every_instruction_set_gives_the_same_bits(len in lengths(), seed: u32) {
            let (a, b) = (floats(len, seed.into()), floats(len, 1));
            let product = |[a, b]: [f32; 2]| a * b;
            let on = |arch: Arch| arch.dispatch(Sum { inputs: [&a, &b], term: product }).to_bits();
            let scalar = on(Arch::Scalar);
            prop_assert!(each_arch().into_iter().all(|arch| on(arch) == scalar));
            let squares = |arch: Arch| arch.dispatch(SumOfSquares { x: &a }).to_bits();
            prop_assert!(each_arch().into_iter().all(|arch| squares(arch) == squares(Arch::Scalar)));
        }

        #[test]
        fn one_bad_element_is_found(len in 1usize..300, at: prop::sample::Index, bad in 0usize..4) {
            let mut x = floats(len, 1);
            x[0] = f32::MAX;
            x[len / 2] = f32::MIN;
            prop_assert!(all_finite(&x));
            let nan_with_payload = f32::from_bits(0xff80_0001);
            x[at.index(len)] = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, nan_with_payload][bad];
            prop_assert!(!all_finite(&x));
        }

        #[test]
        fn all_below_agrees_with_a_loop(
            x in prop::collection::vec(any::<f32>(), 0..100),
            bound in prop_oneof![0.1f32..1e30, Just(f32::INFINITY)],
            touches: bool,
        ) {
            let mut x: Vec<f32> = x.into_iter().map(|x| if touches { x.clamp(-bound, bound) } else { x }).collect();
            prop_assert_eq!(all_below(&x, bound), x.iter().all(|x| x.abs() < bound));
            x.push(-bound);
            prop_assert!(!all_below(&x, bound));
        }
    }

    #[test]
    fn empty_slices() {
        assert_eq!((sum(&[]), dot(&[], &[]), sum_of_squares(&[])), (0.0, 0.0, 0.0));
        assert!(mean(&[]).is_nan());
        assert!(all_finite(&[]));
    }

    #[test]
    fn squares_are_finite_where_all_elements_are() {
        assert!(sum_of_squares(&[f32::MAX; 1000]).is_finite());
        assert!(sum_of_squares(&[f32::from_bits(1)]) > 0.0);
        assert_eq!(sum_of_squares(&[1.0, f32::NEG_INFINITY]), f64::INFINITY);
        assert!(sum_of_squares(&[1.0, f32::NAN]).is_nan());
    }

    /// Adds 2²⁵ ones; a running sum in `f32` would stop at 2²⁴.
    #[test]
    fn long_sums_stay_exact() {
        assert_eq!(sum(&vec![1.0; 1 << 25]), (1 << 25) as f32);
    }
}
