//! Lion: apart from weight decay, each step changes all elements by the same amount; only the sign of the
//! change depends on the gradient and the momentum. This module must not know what the numbers stand for.

use super::{GradientTerms, update};

/// The hyperparameters of one Lion step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LionStep {
    /// The learning rate, η of the paper.
    pub learning_rate: f32,
    /// β₁ of the paper: the weight of the momentum in the direction `c` of the step.
    pub beta1: f32,
    /// β₂ of the paper: the decay of the momentum.
    pub beta2: f32,
    /// λ of the paper: each step subtracts `learning_rate · weight_decay · value` from the value.
    pub weight_decay: f32,
}

/// Applies Lion (Chen et al., NeurIPS 2023, algorithm 2): `c = β₁·m + (1−β₁)·gradient`, `next = value ·
/// (1 − η·λ) − η · sign(c)`, `m = β₂·m + (1−β₂)·gradient`. The sign of 0 is 0. There is no bias correction.
///
/// The momentum starts at 0. A weight decay in `terms` is added to the gradient, and therefore also enters
/// the momentum.
///
/// If `value` is `None`, `next` has the value, which is replaced.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn lion(
    next: &mut [f32],
    value: Option<&[f32]>,
    m: &mut [f32],
    gradient: &[f32],
    terms: GradientTerms,
    step: LionStep,
) {
    let LionStep { learning_rate, beta1, beta2, weight_decay } = step;
    let kept = 1.0 - learning_rate * weight_decay;
    update([next, m], value, gradient, terms, move |[_, m], value, gradient| {
        let c = beta1 * m + (1.0 - beta1) * gradient;
        // `signum` would return 1 for a 0. A NaN stays a NaN.
        let sign = if c == 0.0 { 0.0 } else { c.signum() };
        [kept * value - learning_rate * sign, beta2 * m + (1.0 - beta2) * gradient]
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_has_one_length_and_none_at_a_zero() {
        let step = LionStep { learning_rate: 0.25, beta1: 0.5, beta2: 0.75, weight_decay: 0.0 };
        let (mut next, mut m) = ([f32::NAN; 5], [0.0, 0.0, 0.0, 2.0, 2.0]);
        let gradient = [1e-30, -1e30, 0.0, -2.0, -4.0];
        lion(&mut next, Some(&[1.0; 5]), &mut m, &gradient, GradientTerms::PLAIN, step);
        assert_eq!(next, [0.75, 1.25, 1.0, 1.0, 1.25]);
        assert_eq!(m[2..], [0.0, 1.0, 0.5]);
        lion(&mut next[..1], Some(&[1.0]), &mut [0.0], &[f32::NAN], GradientTerms::PLAIN, step);
        assert!(next[0].is_nan());
    }
}
