//! RMSProp. This module must not know what the numbers stand for.

use super::{GradientTerms, update};

/// The hyperparameters of one RMSProp step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsPropStep {
    /// The learning rate.
    pub learning_rate: f32,
    /// The fraction of the mean square that is carried over from the previous step.
    pub decay: f32,
    /// The fraction of the velocity that is carried over from the previous step. It is ignored if there is
    /// no velocity.
    pub momentum: f32,
    /// ε, which is added to the mean square before its root is taken.
    pub epsilon: f32,
}

/// Applies RMSProp (Tieleman & Hinton, Coursera lecture 6.5, 2012), with ε under the root as in TensorFlow's
/// `ApplyRMSProp`: `mean_square = decay · mean_square + (1 − decay) · gradient²`, `velocity = momentum ·
/// velocity + learning_rate · gradient / √(mean_square + ε)`, `next = value − velocity`.
///
/// Without a velocity, the result is the same as with a momentum of 0. Mean square and velocity start at 0.
///
/// If `value` is `None`, `next` has the value, which is replaced.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn rmsprop(
    next: &mut [f32],
    value: Option<&[f32]>,
    mean_square: &mut [f32],
    velocity: Option<&mut [f32]>,
    gradient: &[f32],
    terms: GradientTerms,
    step: RmsPropStep,
) {
    let RmsPropStep { learning_rate, decay, momentum, epsilon } = step;
    if let Some(velocity) = velocity {
        update(
            [next, mean_square, velocity],
            value,
            gradient,
            terms,
            move |[_, mean_square, velocity], value, gradient| {
                let mean_square = decay * mean_square + (1.0 - decay) * (gradient * gradient);
                let velocity =
                    momentum * velocity + learning_rate * gradient / (mean_square + epsilon).sqrt();
                [value - velocity, mean_square, velocity]
            },
        );
    } else {
        update([next, mean_square], value, gradient, terms, move |[_, mean_square], value, gradient| {
            let mean_square = decay * mean_square + (1.0 - decay) * (gradient * gradient);
            [value - learning_rate * gradient / (mean_square + epsilon).sqrt(), mean_square]
        });
    }
}
