//! FTRL-proximal. This module must not know what the numbers stand for.

use super::{GradientTerms, update};

/// The hyperparameters of one step of FTRL-proximal. "The paper" is McMahan et al., KDD 2013.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FtrlStep {
    /// α of the paper. It must not change from step to step, since `linear` depends on it.
    pub learning_rate: f32,
    /// The factor by which the gradient is multiplied before it is added to `linear`: the current factor of
    /// the learning rate schedule, or 1 without a schedule.
    pub rate: f32,
    /// λ₁ of the paper: a value becomes 0 if the magnitude of its `linear` is at most λ₁.
    pub l1: f32,
    /// λ₂ of the paper. It is doubled in the quadratic term, as in TensorFlow.
    pub l2: f32,
}

/// Applies FTRL-proximal (McMahan et al., KDD 2013, algorithm 1) in the form of TensorFlow's `ApplyFtrl`.
/// The power of the learning rate is TensorFlow's default, −½, so the learning rate of an element is
/// proportional to the inverse root of its accumulator. The update is `n = accumulator + gradient²`, `linear
/// = linear + rate · gradient − (√n − √accumulator) / α · value`, `next = −(linear − sign(linear)·λ₁) / (√n
/// / α + 2·λ₂)`, but 0 if `|linear| ≤ λ₁`; `accumulator = n`. A NaN stays a NaN.
///
/// The accumulator must start at a positive number (TensorFlow uses 0.1), and `linear` at 0. If λ₁ and λ₂
/// are 0, each step is `next = value − α · rate · gradient / √n`, except that in the first step `value` is
/// multiplied by `1 − √(accumulator / n)`.
///
/// If `value` is `None`, `next` has the value, which is replaced.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn ftrl(
    next: &mut [f32],
    value: Option<&[f32]>,
    accumulator: &mut [f32],
    linear: &mut [f32],
    gradient: &[f32],
    terms: GradientTerms,
    step: FtrlStep,
) {
    let FtrlStep { learning_rate, rate, l1, l2 } = step;
    let per_rate = 1.0 / learning_rate;
    update(
        [next, accumulator, linear],
        value,
        gradient,
        terms,
        move |[_, accumulator, linear], value, gradient| {
            // An infinite sum would make the value NaN.
            let n = accumulator + gradient * gradient;
            let n = if n > f32::MAX { f32::MAX } else { n };
            let root = n.sqrt();
            let linear = linear + rate * gradient - (root - accumulator.sqrt()) * per_rate * value;
            let shrunk = l1.copysign(linear) - linear;
            let quadratic = root * per_rate + 2.0 * l2;
            // A NaN must not look like a value that the penalty keeps at 0.
            [if linear.abs() <= l1 { 0.0 } else { shrunk / quadratic }, n, linear]
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nan_stays_a_nan_and_an_overflow_does_not_become_one() {
        let (mut next, mut accumulator) = ([0.0; 3], [0.25; 3]);
        let step = FtrlStep { learning_rate: 0.5, rate: 1.0, l1: 1.0, l2: 0.0 };
        let (value, gradient) = ([f32::NAN, 1.0, 1.0], [0.5, f32::NAN, 1e30]);
        ftrl(&mut next, Some(&value), &mut accumulator, &mut [0.0; 3], &gradient, GradientTerms::PLAIN, step);
        assert!(next[0].is_nan() && next[1].is_nan() && accumulator[1].is_nan(), "{next:?}, {accumulator:?}");
        assert!(next[2].is_finite() && accumulator[2] == f32::MAX, "{next:?}, {accumulator:?}");
    }

    #[test]
    fn what_l1_outweighs_is_nothing() {
        let (mut next, mut linear) = ([f32::NAN; 2], [0.0; 2]);
        let step = FtrlStep { learning_rate: 0.5, rate: 1.0, l1: 1.0, l2: 0.0 };
        ftrl(
            &mut next,
            Some(&[0.0; 2]),
            &mut [0.25; 2],
            &mut linear,
            &[0.5, -2.0],
            GradientTerms::PLAIN,
            step,
        );
        // In the second element n is 4.25, and λ₁ leaves 2 − 1 of the magnitude of `linear`.
        assert_eq!((next[0], linear), (0.0, [0.5, -2.0]));
        assert!((next[1] - 0.5 / 4.25f32.sqrt()).abs() < 1e-6, "{next:?}");
    }
}
