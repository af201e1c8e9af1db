//! Cross-entropy of the sigmoid of logits, and its gradient. Each logit is a separate prediction. This
//! module must not depend on layers.

use std::iter::zip;

use pulp::{Simd, WithSimd};

use crate::cpu::dispatch::{dispatch, zip_map};
use crate::cpu::exp::{exp, ln_1p, sigmoid};
use crate::cpu::rows::row_sum;
use crate::cpu::shape::expect_len;
use crate::cpu::threads::Threads;

/// Returns the mean of `−z · log σ(x) − (1 − z) · log(1 − σ(x))`, where `x` are the logits, `z` the labels
/// in 0..=1 and `σ` is the sigmoid. The loss is computed as `max(x, 0) − x · z + log(1 + e^−|x|)`, which
/// does not overflow. The result is 0 if there are no elements.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn sigmoid_cross_entropy(logits: &[f32], labels: &[f32]) -> f32 {
    expect_len("sigmoid_cross_entropy: labels", labels, logits.len());
    (dispatch(SigmoidLosses { logits, labels }) / logits.len().max(1) as f64) as f32
}

/// The computation of the sum of the losses of all elements.
struct SigmoidLosses<'a> {
    logits: &'a [f32],
    labels: &'a [f32],
}

impl WithSimd for SigmoidLosses<'_> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f64 {
        const BLOCK: usize = 1024;
        let mut losses = [0.0; BLOCK];
        let mut total = 0.0;
        for (x, z) in zip(self.logits.chunks(BLOCK), self.labels.chunks(BLOCK)) {
            // A loop is used here. The compiler would not inline a closure of this size, and so would not
            // vectorise the computation.
            let (losses, z) = (&mut losses[..x.len()], &z[..x.len()]);
            for i in 0..x.len() {
                losses[i] = sigmoid_loss(x[i], z[i]);
            }
            total += f64::from(row_sum([&*losses], |[loss]| loss));
        }
        total
    }
}

#[inline(always)]
fn sigmoid_loss(x: f32, z: f32) -> f32 {
    let positive = if x < 0.0 { 0.0 } else { x };
    positive - x * z + ln_1p(exp(-x.abs()))
}

/// Computes the gradient of [`sigmoid_cross_entropy`] with respect to the logits, times `upstream`: `dst[i] =
/// (σ(x[i]) − z[i]) · upstream / len`.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn sigmoid_cross_entropy_grad(
    dst: &mut [f32],
    logits: &[f32],
    labels: &[f32],
    upstream: f32,
    threads: Threads,
) {
    let factor = upstream / logits.len() as f32;
    zip_map([dst], [logits, labels], |_, [x, z]| [(sigmoid(x) - z) * factor], threads);
}
