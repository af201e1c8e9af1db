//! The rectifier `max(x, 0)` of one number, which element-wise kernels and epilogues use. This module must
//! not depend on layers.

/// Returns `max(x, 0)`, except that a NaN stays a NaN. If a NaN became 0, a diverged network would look like
/// a dead network.
#[inline(always)]
pub(super) fn rectify(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

#[cfg(test)]
mod tests {
    use crate::cpu::{Threads, Unary, unary_grad, unary_in_place};

    #[test]
    fn special_values() {
        // A slice of 35 elements has both a vector body and a scalar tail.
        for len in [1, 35] {
            let relu = |x: f32| {
                let mut y = vec![x; len];
                unary_in_place(&mut y, Unary::Relu, Threads::One);
                y
            };
            for (x, want) in
                [(f32::INFINITY, f32::INFINITY), (f32::NEG_INFINITY, 0.0), (0.0, 0.0), (-0.0, 0.0)]
            {
                assert_eq!(relu(x), vec![want; len]);
            }
            assert!(relu(f32::NAN).iter().all(|y| y.is_nan()));
            let mut dx = vec![1.0; len];
            unary_grad(&mut dx, &vec![0.0; len], &vec![f32::NAN; len], Unary::Relu, Threads::One);
            assert_eq!(dx, vec![0.0; len]);
        }
    }
}
