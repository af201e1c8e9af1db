//! Adds, scales and clips whole slices. This module must not know what the numbers stand for. Long slices
//! are divided among the threads.

use super::dispatch::zip_map;
use super::threads::Threads;

/// Computes `dst[i] += src[i]`.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn accumulate(dst: &mut [f32], src: &[f32], threads: Threads) {
    zip_map([dst], [src], |[dst], [src]| [dst + src], threads);
}

/// Computes `out[i] = a[i] + b[i]`.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn add_into(out: &mut [f32], a: &[f32], b: &[f32], threads: Threads) {
    zip_map([out], [a, b], |_, [a, b]| [a + b], threads);
}

/// Computes `values[i] *= factor`.
pub fn scale_in_place(values: &mut [f32], factor: f32, threads: Threads) {
    zip_map([values], [], move |[value], []| [value * factor], threads);
}

/// Replaces each element with the nearest number in `-bound..=bound`. A NaN stays a NaN.
///
/// # Panics
/// If the bound is negative or NaN.
#[track_caller]
pub fn clip_in_place(values: &mut [f32], bound: f32, threads: Threads) {
    assert!(bound >= 0.0, "clip: the bound is {bound}, expected at least 0");
    zip_map([values], [], move |[value], []| [value.clamp(-bound, bound)], threads);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::tests::{assert_close, floats};

    proptest! {
        #[test]
        fn agrees_with_f64(len in 0usize..200, seed: u32) {
            let (a, b) = (floats(len, seed.into()), floats(len, 1));
            let mut sum = a.clone();
            accumulate(&mut sum, &b, Threads::One);
            assert_close(&sum, (0..len).map(|i| f64::from(a[i]) + f64::from(b[i])), 0.0);
            let mut out = vec![f32::NAN; len];
            add_into(&mut out, &a, &b, Threads::One);
            prop_assert_eq!(&out, &sum);
            scale_in_place(&mut out, -0.75, Threads::One);
            assert_close(&out, sum.iter().map(|&x| f64::from(x) * -0.75), 0.0);
        }

        #[test]
        fn clipped_is_within_and_nearest(len in 0usize..200, seed: u32, bound in 0f32..2.0) {
            let before = floats(len, seed.into());
            let mut after = before.clone();
            clip_in_place(&mut after, bound, Threads::One);
            for (before, after) in before.into_iter().zip(after) {
                prop_assert_eq!(after, before.max(-bound).min(bound));
            }
        }
    }

    #[test]
    fn infinity_is_clipped_and_nan_stays() {
        let mut x = [f32::NEG_INFINITY, f32::NAN, -1.0, 2.0, f32::INFINITY];
        clip_in_place(&mut x, 1.5, Threads::One);
        assert!(x[1].is_nan());
        assert_eq!([x[0], x[2], x[3], x[4]], [-1.5, -1.0, 1.5, 1.5]);
    }
}
