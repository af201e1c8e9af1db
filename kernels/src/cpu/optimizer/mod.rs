//! Optimizer updates, element by element: the value out of place (readers may hold the old one), the slots in
//! place, and a moving average of the values.
//!
//! They must not know variables, versions or how a variable is partitioned: (A) an update of any partition
//! gives the bits that an update of the whole gives; (B) it agrees with `f64`; (C) neutral terms change no
//! bit.

mod adagrad;
mod adam;
mod adamw;
mod average;
mod ftrl;
mod momentum;
mod rmsprop;
mod sgd;
#[cfg(test)]
mod tests;

pub use adagrad::{AdagradStep, adagrad};
pub use adam::{AdamStep, adam};
pub use adamw::{AdamWStep, adamw};
pub use average::average;
pub use ftrl::{FtrlStep, ftrl};
pub use momentum::{MomentumStep, momentum};
pub use rmsprop::{RmsPropStep, rmsprop};
pub use sgd::sgd;

use super::dispatch::zip_map;
use super::threads::Threads;

/// The terms that an optimizer uses as the gradient: `scale · gradient + weight_decay · value`, in the same
/// pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientTerms {
    /// 1 / n for the mean of a sum of n gradients.
    pub scale: f32,
    /// The factor of the value: that of an L2 penalty of half of it.
    pub weight_decay: f32,
}

impl GradientTerms {
    /// The gradient as it is.
    pub const PLAIN: Self = Self { scale: 1.0, weight_decay: 0.0 };
}

impl Default for GradientTerms {
    fn default() -> Self {
        Self::PLAIN
    }
}

/// Computes `written = f(written, value, gradient)` for each element in one pass, `gradient` with its terms.
///
/// `f` must own its captures (`move`): the compiler must assume that a number behind a reference is one of
/// those that are written, and would not vectorise the loop.
#[inline]
#[track_caller]
fn update<const W: usize>(
    written: [&mut [f32]; W],
    value: &[f32],
    gradient: &[f32],
    terms: GradientTerms,
    f: impl Fn([f32; W], f32, f32) -> [f32; W] + Sync,
) {
    let GradientTerms { scale, weight_decay } = terms;
    let read = [value, gradient];
    // A decay of 0 is left out: 0 · value is NaN where the value is infinite, and -0 + 0 is another zero.
    if weight_decay == 0.0 {
        zip_map(written, read, move |old, [value, gradient]| f(old, value, scale * gradient), Threads::One);
    } else {
        let with_terms = move |value: f32, gradient: f32| scale * gradient + weight_decay * value;
        zip_map(
            written,
            read,
            move |old, [value, gradient]| f(old, value, with_terms(value, gradient)),
            Threads::One,
        );
    }
}
