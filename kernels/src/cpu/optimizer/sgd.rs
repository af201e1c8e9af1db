//! Gradient descent. This module must not know what the numbers stand for.

use super::{GradientTerms, update};

/// Applies gradient descent: `next = value − learning_rate · gradient`.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn sgd(next: &mut [f32], value: &[f32], gradient: &[f32], terms: GradientTerms, learning_rate: f32) {
    update([next], value, gradient, terms, move |_, value, gradient| [value - learning_rate * gradient]);
}
