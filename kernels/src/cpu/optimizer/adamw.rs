//! AdamW: Adam, whose weight decay does not pass through the moments. It must not know what the numbers stand
//! for.

use super::{AdamStep, GradientTerms, update};

/// The hyperparameters of one AdamW step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWStep {
    /// The hyperparameters of Adam.
    pub adam: AdamStep,
    /// λ of the paper: the value loses `learning_rate · weight_decay` of itself.
    pub weight_decay: f32,
}

/// Applies AdamW (Loshchilov & Hutter, ICLR 2019, algorithm 2), with the decay times the learning rate, as
/// usual: `m` and `v` of [`adam`](super::adam), `next = value · (1 − α·λ) − α·√(1−β₂ᵗ)/(1−β₁ᵗ) · m / (√v +
/// ε̂)`.
///
/// Both moments start at 0. The decay of `terms` passes through the moments, beside this one.
///
/// # Panics
/// If the slices differ in length, or if `step` is 0.
#[track_caller]
pub fn adamw(
    next: &mut [f32],
    value: &[f32],
    m: &mut [f32],
    v: &mut [f32],
    gradient: &[f32],
    terms: GradientTerms,
    step: AdamWStep,
) {
    let rate = step.adam.corrected_rate();
    let AdamStep { learning_rate, beta1, beta2, epsilon, .. } = step.adam;
    let kept = 1.0 - learning_rate * step.weight_decay;
    update([next, m, v], value, gradient, terms, move |[_, m, v], value, gradient| {
        let m = beta1 * m + (1.0 - beta1) * gradient;
        let v = beta2 * v + (1.0 - beta2) * (gradient * gradient);
        [kept * value - rate * m / (v.sqrt() + epsilon), m, v]
    });
}
