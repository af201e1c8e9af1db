//! AdamW: Adam with a weight decay that does not pass through the moments. This module must not know what
//! the numbers stand for.

use super::{AdamStep, GradientTerms, update};

/// The hyperparameters of one AdamW step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWStep {
    /// The hyperparameters of Adam.
    pub adam: AdamStep,
    /// λ of the paper: each step subtracts `learning_rate · weight_decay · value` from the value.
    pub weight_decay: f32,
}

/// Applies AdamW (Loshchilov & Hutter, ICLR 2019, algorithm 2), with the decay multiplied by the learning
/// rate, as is usual: `next = value · (1 − α·λ) − α·√(1−β₂ᵗ)/(1−β₁ᵗ) · m / (√v + ε̂)`, with `m` and `v` as in
/// [`adam`](super::adam).
///
/// Both moments start at 0. A weight decay in `terms` is applied in addition, and passes through the
/// moments.
///
/// If `value` is `None`, `next` has the value, which is replaced.
///
/// # Panics
/// If the slices differ in length, or if `step` is 0.
#[track_caller]
pub fn adamw(
    next: &mut [f32],
    value: Option<&[f32]>,
    m: &mut [f32],
    v: &mut [f32],
    gradient: &[f32],
    terms: GradientTerms,
    step: AdamWStep,
) {
    let AdamWStep { adam, weight_decay } = step;
    let rate = adam.corrected_rate();
    let kept = 1.0 - adam.learning_rate * weight_decay;
    update([next, m, v], value, gradient, terms, move |[_, m, v], value, gradient| {
        let [m, v] = adam.moments(m, v, gradient);
        [kept * value - rate * m / (v.sqrt() + adam.epsilon), m, v]
    });
}
