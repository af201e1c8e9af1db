//! FTRL-proximal. It must not know what the numbers stand for.

use super::{GradientTerms, update};

/// The hyperparameters of one FTRL step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FtrlStep {
    /// α of the paper. It must not change from step to step, since `linear` depends on it.
    pub learning_rate: f32,
    /// The factor of the gradient in `linear`: that of a learning rate schedule, or else 1.
    pub rate: f32,
    /// λ₁ of the paper: a value whose `linear` is not beyond it is 0.
    pub l1: f32,
    /// λ₂ of the paper, twice in the quadratic term, as in TensorFlow.
    pub l2: f32,
}

/// Applies FTRL-proximal (McMahan et al., KDD 2013, algorithm 1) in the form of TensorFlow's `ApplyFtrl`,
/// with its usual power of the learning rate, −½, so that the learning rates fall with the root of the
/// accumulator: `n = accumulator + gradient²`, `linear = linear + rate · gradient − (√n − √accumulator) / α ·
/// value`, `next = −(linear − sign(linear)·λ₁) / (√n / α + 2·λ₂)` where `|linear| > λ₁`, or else 0;
/// `accumulator = n`.
///
/// The accumulator starts at a positive number, 0.1 in TensorFlow, and `linear` at 0. So the first step keeps
/// only `1 − √(accumulator / n)` of an initial value. Without λ₁ and λ₂ the step from there on is `next =
/// value − α · rate · gradient / √n`.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn ftrl(
    next: &mut [f32],
    value: &[f32],
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
            let n = accumulator + gradient * gradient;
            let root = n.sqrt();
            let linear = linear + rate * gradient - (root - accumulator.sqrt()) * per_rate * value;
            let shrunk = l1.copysign(linear) - linear;
            let quadratic = root * per_rate + 2.0 * l2;
            [if linear.abs() > l1 { shrunk / quadratic } else { 0.0 }, n, linear]
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_l1_outweighs_is_nothing() {
        let (mut next, mut linear) = ([f32::NAN; 2], [0.0; 2]);
        let step = FtrlStep { learning_rate: 0.5, rate: 1.0, l1: 1.0, l2: 0.0 };
        ftrl(&mut next, &[0.0; 2], &mut [0.25; 2], &mut linear, &[0.5, -2.0], GradientTerms::PLAIN, step);
        // The second: n is 4.25, and 2 − 1 of it is left.
        assert_eq!((next[0], linear), (0.0, [0.5, -2.0]));
        assert!((next[1] - 0.5 / 4.25f32.sqrt()).abs() < 1e-6, "{next:?}");
    }
}
