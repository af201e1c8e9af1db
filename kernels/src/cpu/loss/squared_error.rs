//! The mean squared error and its gradient. This module must not depend on layers.

use crate::cpu::dispatch::zip_map;
use crate::cpu::reduce::total;
use crate::cpu::threads::Threads;

/// Returns the mean of `(x − target)²`, or 0 if there are no elements.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn mean_squared_error(x: &[f32], target: &[f32]) -> f32 {
    let total = total([x, target], |[x, target]| (x - target) * (x - target));
    (total / x.len().max(1) as f64) as f32
}

/// Computes the gradient of [`mean_squared_error`] with respect to `x`, times `upstream`: `dst[i] = 2 (x[i] −
/// target[i]) · upstream / len`.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn mean_squared_error_grad(dst: &mut [f32], x: &[f32], target: &[f32], upstream: f32, threads: Threads) {
    let factor = 2.0 * upstream / x.len() as f32;
    zip_map([dst], [x, target], |_, [x, target]| [(x - target) * factor], threads);
}
