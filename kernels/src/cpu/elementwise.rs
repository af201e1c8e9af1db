//! Element-wise arithmetic on slices of equal length. It must not know what the numbers stand for.

use super::dispatch::zip_map;

/// `dst[i] = a[i] + b[i]`.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn add(dst: &mut [f32], a: &[f32], b: &[f32]) {
    zip_map([dst], [a, b], |_, [a, b]| [a + b]);
}

/// `dst[i] += src[i]`.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn accumulate(dst: &mut [f32], src: &[f32]) {
    zip_map([dst], [src], |[dst], [src]| [dst + src]);
}

/// `dst[i] *= factor`.
pub fn scale(dst: &mut [f32], factor: f32) {
    zip_map([dst], [], |[dst], []| [dst * factor]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::testing::{assert_close, bits, floats};

    proptest! {
        #[test]
        fn agree_with_f64(len in 0usize..200, seed: u32, factor in -10f32..10.0) {
            let (a, b) = (floats(len, seed.into()), floats(len, 1));
            let mut dst = vec![f32::NAN; len];
            add(&mut dst, &a, &b);
            assert_close(&dst, (0..len).map(|i| f64::from(a[i]) + f64::from(b[i])), 0.0);

            let mut in_place = a.clone();
            accumulate(&mut in_place, &b);
            assert_eq!(bits(&dst), bits(&in_place));

            let mut scaled = a.clone();
            scale(&mut scaled, factor);
            assert_close(&scaled, a.iter().map(|&a| f64::from(a) * f64::from(factor)), 0.0);
        }
    }
}
