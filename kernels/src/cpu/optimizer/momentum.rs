//! Gradient descent with momentum. This module must not know what the numbers stand for.

use super::{GradientTerms, update};

/// The hyperparameters of one step with momentum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MomentumStep {
    /// The learning rate.
    pub learning_rate: f32,
    /// The fraction of the velocity that is carried over from the previous step.
    pub momentum: f32,
    /// True for Nesterov's variant, which uses the velocity one step ahead.
    pub nesterov: bool,
}

/// Applies gradient descent with momentum (Polyak 1964), in TensorFlow's form. In this form, the velocity is
/// not scaled by the learning rate: `velocity = momentum · velocity + gradient`, `next = value −
/// learning_rate · velocity`.
///
/// With `nesterov` (Sutskever et al. 2013), the result is `next = value − learning_rate · (gradient +
/// momentum · velocity)`, with the new velocity. The velocity starts at 0.
///
/// If `value` is `None`, `next` has the value, which is replaced.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn momentum(
    next: &mut [f32],
    value: Option<&[f32]>,
    velocity: &mut [f32],
    gradient: &[f32],
    terms: GradientTerms,
    step: MomentumStep,
) {
    let MomentumStep { learning_rate, momentum, nesterov } = step;
    if nesterov {
        update([next, velocity], value, gradient, terms, move |[_, velocity], value, gradient| {
            let velocity = momentum * velocity + gradient;
            [value - learning_rate * (gradient + momentum * velocity), velocity]
        });
    } else {
        update([next, velocity], value, gradient, terms, move |[_, velocity], value, gradient| {
            let velocity = momentum * velocity + gradient;
            [value - learning_rate * velocity, velocity]
        });
    }
}
