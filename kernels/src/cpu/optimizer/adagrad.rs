//! Adagrad. This module must not know what the numbers stand for.

use super::{GradientTerms, update};

/// The hyperparameters of one Adagrad step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdagradStep {
    /// The learning rate.
    pub learning_rate: f32,
    /// ε, which is added to the square root.
    pub epsilon: f32,
}

/// Applies Adagrad (Duchi et al., JMLR 2011), with ε outside the root as in TensorFlow's `ApplyAdagradV2`:
/// `accumulator = accumulator + gradient²`, `next = value − learning_rate · gradient / (√accumulator + ε)`.
///
/// The accumulator must start at a positive number; TensorFlow uses 0.1.
///
/// If `value` is `None`, `next` has the value, which is replaced.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn adagrad(
    next: &mut [f32],
    value: Option<&[f32]>,
    accumulator: &mut [f32],
    gradient: &[f32],
    terms: GradientTerms,
    step: AdagradStep,
) {
    let AdagradStep { learning_rate, epsilon } = step;
    update([next, accumulator], value, gradient, terms, move |[_, accumulator], value, gradient| {
        let accumulator = accumulator + gradient * gradient;
        [value - learning_rate * gradient / (accumulator.sqrt() + epsilon), accumulator]
    });
}
