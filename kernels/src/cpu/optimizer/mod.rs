//! Optimizer updates, element by element, and a moving average of values. A value is updated in place, unless
//! readers may still hold the old value; the slots are updated in place.
//!
//! This module must not depend on variables, versions or partitions. Wanted properties: (A) updates of
//! parts, and in place, give the bits of an update of the whole, except with LAMB; (B) an update agrees with
//! the same update in `f64`; (C) [`GradientTerms::PLAIN`] changes no bit of the result.

mod adagrad;
mod adam;
mod adamw;
mod average;
mod ftrl;
mod lamb;
mod lion;
mod momentum;
mod rmsprop;
mod sgd;
mod step;
#[cfg(test)]
mod tests;

pub use adagrad::{AdagradStep, adagrad};
pub use adam::{AdamStep, adam};
pub use adamw::{AdamWStep, adamw};
pub use average::average;
pub use ftrl::{FtrlStep, ftrl};
pub use lamb::{LambStep, lamb};
pub use lion::{LionStep, lion};
pub use momentum::{MomentumStep, momentum};
pub use rmsprop::{RmsPropStep, rmsprop};
pub use sgd::{sgd, sgd_past_caches};
pub use step::OptimizerStep;

use super::dispatch::zip_map;
use super::threads::Threads;

/// The terms of the gradient that an optimizer uses: `scale · gradient + weight_decay · value`. They are
/// computed in the same pass as the update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientTerms {
    /// The factor of the gradient. A factor of 1 / n turns a sum of n gradients into their mean.
    pub scale: f32,
    /// The weight of an L2 penalty: this factor times the value is added to the gradient.
    pub weight_decay: f32,
}

impl GradientTerms {
    /// The terms that leave the gradient unchanged.
    pub const PLAIN: Self = Self { scale: 1.0, weight_decay: 0.0 };
}

impl Default for GradientTerms {
    fn default() -> Self {
        Self::PLAIN
    }
}

/// Computes `written = f(written, value, gradient)` for each element in one pass. If `value` is `None`, the
/// first of the written slices has the value, which the update replaces. Before `f` gets the gradient, the
/// gradient is scaled and the weight decay is added, as `terms` says.
///
/// `f` must own its captures (`move`). If `f` captured references, the compiler would assume that the loop
/// may write to the numbers behind the references, and would not vectorise the loop.
#[inline]
#[track_caller]
fn update<const W: usize>(
    written: [&mut [f32]; W],
    value: Option<&[f32]>,
    gradient: &[f32],
    terms: GradientTerms,
    f: impl Fn([f32; W], f32, f32) -> [f32; W] + Sync,
) {
    let GradientTerms { scale, weight_decay } = terms;
    let with_decay = move |value: f32, gradient: f32| scale * gradient + weight_decay * value;
    // A decay of 0 is skipped, because it could change bits: 0 · value is NaN if the value is infinite, and
    // -0 + 0 is +0.
    match (value, weight_decay == 0.0) {
        (Some(value), true) => {
            let f = move |old, [value, gradient]: [f32; 2]| f(old, value, scale * gradient);
            zip_map(written, [value, gradient], f, Threads::One);
        }
        (Some(value), false) => {
            let f = move |old, [value, gradient]: [f32; 2]| f(old, value, with_decay(value, gradient));
            zip_map(written, [value, gradient], f, Threads::One);
        }
        (None, true) => {
            let f = move |old: [f32; W], [gradient]: [f32; 1]| f(old, old[0], scale * gradient);
            zip_map(written, [gradient], f, Threads::One);
        }
        (None, false) => {
            let f = move |old: [f32; W], [gradient]: [f32; 1]| f(old, old[0], with_decay(old[0], gradient));
            zip_map(written, [gradient], f, Threads::One);
        }
    }
}
