//! The rectifier `max(x, 0)` and its gradient. It must not know layers.

use super::dispatch::zip_map;

/// `max(x, 0)`, except that a NaN stays a NaN: a diverged network must not look like a dead one.
#[inline(always)]
pub(super) fn rectify(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

/// `dst[i] = max(x[i], 0)`; a NaN stays a NaN.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn relu(dst: &mut [f32], x: &[f32]) {
    zip_map([dst], [x], |_, [x]| [rectify(x)]);
}

/// `x[i] = max(x[i], 0)`; a NaN stays a NaN.
pub fn relu_in_place(x: &mut [f32]) {
    zip_map([x], [], |[x], []| [rectify(x)]);
}

/// `dst[i] = dy[i]` where `y[i] > 0`, else 0, with `y` the output of relu and `dy` its gradient.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn relu_grad(dst: &mut [f32], y: &[f32], dy: &[f32]) {
    zip_map([dst], [y, dy], |_, [y, dy]| [if y > 0.0 { dy } else { 0.0 }]);
}

/// `dy[i] = 0` where not `y[i] > 0`, with `y` the output of relu and `dy` its gradient.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn relu_grad_in_place(dy: &mut [f32], y: &[f32]) {
    zip_map([dy], [y], |[dy], [y]| [if y > 0.0 { dy } else { 0.0 }]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::testing::{assert_close, bits, floats};

    proptest! {
        #[test]
        fn agree_with_f64(len in 0usize..200, seed: u32) {
            let (x, dy) = (floats(len, seed.into()), floats(len, 1));
            let (mut y, mut dx) = (vec![f32::NAN; len], vec![f32::NAN; len]);

            relu(&mut y, &x);
            assert_close(&y, x.iter().map(|&x| f64::from(x).max(0.0)), 0.0);
            let mut in_place = x.clone();
            relu_in_place(&mut in_place);
            assert_eq!(bits(&y), bits(&in_place));

            relu_grad(&mut dx, &y, &dy);
            assert_close(&dx, (0..len).map(|i| if x[i] > 0.0 { f64::from(dy[i]) } else { 0.0 }), 0.0);
            let mut in_place = dy.clone();
            relu_grad_in_place(&mut in_place, &y);
            assert_eq!(bits(&dx), bits(&in_place));
        }
    }

    #[test]
    fn special_values() {
        // Long enough for the vector body and the scalar tail.
        for len in [1, 35] {
            for (x, want) in
                [(f32::INFINITY, f32::INFINITY), (f32::NEG_INFINITY, 0.0), (0.0, 0.0), (-0.0, 0.0)]
            {
                let mut y = vec![x; len];
                relu_in_place(&mut y);
                assert_eq!(y, vec![want; len]);
            }
            let mut y = vec![f32::NAN; len];
            relu_in_place(&mut y);
            assert!(y.iter().all(|y| y.is_nan()));
            let mut dy = vec![f32::NAN; len];
            relu_grad_in_place(&mut dy, &vec![0.0; len]);
            assert_eq!(dy, vec![0.0; len]);
        }
    }
}
