//! Adam. This module must not know what the numbers stand for.

use super::{GradientTerms, update};

/// The hyperparameters of one Adam step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamStep {
    /// The learning rate, α of the paper.
    pub learning_rate: f32,
    /// The decay of the first moment.
    pub beta1: f32,
    /// The decay of the second moment.
    pub beta2: f32,
    /// ε̂ of the paper: the number added to √v, where v has no bias correction.
    pub epsilon: f32,
    /// The number of this step, counted from 1.
    pub step: u64,
}

impl AdamStep {
    /// Returns `α · √(1 − β₂ᵗ) / (1 − β₁ᵗ)`, computed in `f64` because `1 − β₂ᵗ` loses digits in `f32` for
    /// small `t`.
    ///
    /// # Panics
    /// If `step` is 0.
    pub fn corrected_rate(&self) -> f32 {
        let [first, second] = [self.beta1, self.beta2].map(|beta| self.correction(beta));
        (f64::from(self.learning_rate) * second.sqrt() / first) as f32
    }

    /// Returns the moments `β₁·m + (1−β₁)·gradient` and `β₂·v + (1−β₂)·gradient²`.
    #[inline(always)]
    pub(super) fn moments(self, m: f32, v: f32, gradient: f32) -> [f32; 2] {
        let Self { beta1, beta2, .. } = self;
        [beta1 * m + (1.0 - beta1) * gradient, beta2 * v + (1.0 - beta2) * (gradient * gradient)]
    }

    /// Returns `1 − βᵗ`, by which a moment with the decay β is divided to correct its bias.
    ///
    /// # Panics
    /// If `step` is 0.
    pub fn correction(&self, beta: f32) -> f64 {
        assert!(self.step >= 1, "adam: the step is 0, but steps are numbered from 1");
        1.0 - f64::from(beta).powf(self.step as f64)
    }
}

/// Applies Adam, with the bias-corrected learning rate of Kingma & Ba 2015, end of section 2. This is the ε̂
/// form, as in TensorFlow: `m = β₁·m + (1−β₁)·gradient`, `v = β₂·v + (1−β₂)·gradient²`, `next = value −
/// α·√(1−β₂ᵗ)/(1−β₁ᵗ) · m / (√v + ε̂)`.
///
/// Both moments start at 0.
///
/// If `value` is `None`, `next` has the value, which is replaced.
///
/// # Panics
/// If the slices differ in length, or if `step` is 0.
#[track_caller]
pub fn adam(
    next: &mut [f32],
    value: Option<&[f32]>,
    m: &mut [f32],
    v: &mut [f32],
    gradient: &[f32],
    terms: GradientTerms,
    step: AdamStep,
) {
    let rate = step.corrected_rate();
    update([next, m, v], value, gradient, terms, move |[_, m, v], value, gradient| {
        let [m, v] = step.moments(m, v, gradient);
        [value - rate * m / (v.sqrt() + step.epsilon), m, v]
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::tests::assert_close;

    const STEP: AdamStep = AdamStep { learning_rate: 0.01, beta1: 0.9, beta2: 0.999, epsilon: 1e-7, step: 1 };

    /// Checks that the first step moves a value by the learning rate, however large the gradient is. After
    /// many steps, the bias correction must have no effect.
    #[test]
    fn the_bias_is_corrected() {
        for gradient in [1.0, 1e3, 1e6] {
            let mut next = [0.0];
            adam(&mut next, Some(&[0.0]), &mut [0.0], &mut [0.0], &[gradient], GradientTerms::PLAIN, STEP);
            assert_close(&next, [-0.01], 1.0);
        }
        for step in [1_000_000, u64::MAX] {
            assert_eq!(AdamStep { step, ..STEP }.corrected_rate(), 0.01);
        }
    }

    #[test]
    #[should_panic(expected = "steps are numbered from 1")]
    fn there_is_no_step_zero() {
        let none = AdamStep { step: 0, ..STEP };
        adam(&mut [], None, &mut [], &mut [], &[], GradientTerms::PLAIN, none);
    }
}
