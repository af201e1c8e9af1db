//! LAMB: Adam's direction, scaled to the norm of the whole variable. This module must not know what the
//! numbers stand for.

use super::super::dispatch::zip_map;
use super::super::reduce::sum_of_squares;
use super::super::threads::Threads;
use super::{AdamStep, GradientTerms, update};

/// The hyperparameters of one LAMB step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LambStep {
    /// The hyperparameters of Adam. Here, ε is added to the root of the corrected second moment.
    pub adam: AdamStep,
    /// λ of the paper: this factor times the value is added to Adam's direction, before the norm is taken.
    pub weight_decay: f32,
}

/// Applies LAMB (You et al., ICLR 2020, algorithm 2) to a whole variable: `r = m̂ / (√v̂ + ε) + λ · value`,
/// `next = value − α · ‖value‖ / ‖r‖ · r`, with `m` and `v` as in [`adam`](super::adam), and the corrections
/// `m̂ = m / (1−β₁ᵗ)` and `v̂ = v / (1−β₂ᵗ)`.
///
/// The trust ratio `‖value‖ / ‖r‖` is 1 if one of the norms is 0, and has no bounds: the paper's φ is the
/// identity. This is the variant of `optax.lamb`.
///
/// The norms are computed over all elements that are passed. A part of a variable has other norms, so
/// updating a variable part by part gives another result than updating it as a whole.
///
/// Both moments start at 0. A weight decay in `terms` is added to the gradient, and therefore also enters
/// the moments.
///
/// # Panics
/// If the slices differ in length, or if `step` is 0.
#[track_caller]
pub fn lamb(
    next: &mut [f32],
    value: &[f32],
    m: &mut [f32],
    v: &mut [f32],
    gradient: &[f32],
    terms: GradientTerms,
    step: LambStep,
) {
    let LambStep { adam, weight_decay } = step;
    let [first, second] = [adam.beta1, adam.beta2].map(|beta| (1.0 / adam.correction(beta)) as f32);
    // `next` holds r until both norms are known.
    update([&mut *next, m, v], Some(value), gradient, terms, move |[_, m, v], value, gradient| {
        let [m, v] = adam.moments(m, v, gradient);
        [first * m / ((second * v).sqrt() + adam.epsilon) + weight_decay * value, m, v]
    });
    let rate = (f64::from(adam.learning_rate) * trust_ratio(value, next)) as f32;
    zip_map([next], [value], move |[r], [value]| [value - rate * r], Threads::One);
}

/// Returns `‖value‖ / ‖direction‖`, or 1 if one of the norms is 0.
fn trust_ratio(value: &[f32], direction: &[f32]) -> f64 {
    let [value, direction] = [value, direction].map(|x| sum_of_squares(x).sqrt());
    if value == 0.0 || direction == 0.0 { 1.0 } else { value / direction }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::tests::{assert_close, floats};

    const ADAM: AdamStep = AdamStep { learning_rate: 0.01, beta1: 0.9, beta2: 0.999, epsilon: 1e-6, step: 1 };
    const PENALTY: GradientTerms = GradientTerms { scale: 0.25, weight_decay: 0.125 };

    /// Returns the values after three steps, computed in `f64` with the formulas of the LAMB paper.
    fn model(len: usize, terms: GradientTerms, decay: f64) -> Vec<f64> {
        let wide = |x: Vec<f32>| x.into_iter().map(f64::from).collect::<Vec<_>>();
        let (mut value, mut m, mut v) = (wide(floats(len, 1)), vec![0.0; len], vec![0.0; len]);
        for step in 1..=3 {
            let gradient = wide(floats(len, 10 + step));
            let mut r = vec![0.0; len];
            for i in 0..len {
                let g = f64::from(terms.scale) * gradient[i] + f64::from(terms.weight_decay) * value[i];
                m[i] = 0.9 * m[i] + 0.1 * g;
                v[i] = 0.999 * v[i] + 0.001 * g * g;
                let [one, two] = [0.9f64, 0.999].map(|beta| 1.0 - beta.powi(step as i32));
                r[i] = m[i] / one / ((v[i] / two).sqrt() + 1e-6) + decay * value[i];
            }
            let [of_value, of_r] = [&value, &r].map(|x| x.iter().map(|x| x * x).sum::<f64>().sqrt());
            let ratio = if of_value == 0.0 || of_r == 0.0 { 1.0 } else { of_value / of_r };
            value.iter_mut().zip(&r).for_each(|(value, r)| *value -= 0.01 * ratio * r);
        }
        value
    }

    proptest! {
        #[test]
        fn agrees_with_f64(len in 0usize..200, decay in prop_oneof![Just(0.0f32), Just(0.5)]) {
            for terms in [GradientTerms::PLAIN, PENALTY] {
                let (mut value, mut m, mut v) = (floats(len, 1), vec![0.0; len], vec![0.0; len]);
                for step in 1..=3 {
                    let mut next = vec![f32::NAN; len];
                    let numbers = LambStep { adam: AdamStep { step, ..ADAM }, weight_decay: decay };
                    lamb(&mut next, &value, &mut m, &mut v, &floats(len, 10 + step), terms, numbers);
                    value = next;
                }
                assert_close(&value, model(len, terms, decay.into()), 1.0);
            }
        }

        /// Checks that the norm of a step is the learning rate times the norm of the variable, whatever the
        /// gradient's scale.
        #[test]
        fn a_step_scales_with_the_value(scale in 1e-3f32..1e3, size in 1e-3f32..1e3) {
            let value = floats(50, 1).into_iter().map(|x| size * x).collect::<Vec<_>>();
            let (mut next, mut m, mut v) = (vec![f32::NAN; 50], vec![0.0; 50], vec![0.0; 50]);
            let terms = GradientTerms { scale, weight_decay: 0.0 };
            let numbers = LambStep { adam: ADAM, weight_decay: 0.25 };
            lamb(&mut next, &value, &mut m, &mut v, &floats(50, 2), terms, numbers);
            let moved: Vec<f32> = next.iter().zip(&value).map(|(next, value)| next - value).collect();
            let [moved, norm] = [moved, value].map(|x| sum_of_squares(&x).sqrt());
            prop_assert!((moved / norm - 0.01).abs() < 1e-4, "{moved} of {norm}");
        }
    }

    #[test]
    fn a_variable_of_zeros_moves_as_with_adam() {
        let (mut next, mut m, mut v) = ([f32::NAN; 2], [0.0; 2], [0.0; 2]);
        let numbers = LambStep { adam: ADAM, weight_decay: 0.5 };
        lamb(&mut next, &[0.0; 2], &mut m, &mut v, &[3.0, -5.0], GradientTerms::PLAIN, numbers);
        assert_close(&next, [-0.01, 0.01], 1.0);
        lamb(
            &mut next,
            &[2.0, 1.0],
            &mut [0.0; 2],
            &mut [0.0; 2],
            &[0.0; 2],
            GradientTerms::PLAIN,
            LambStep { adam: ADAM, weight_decay: 0.0 },
        );
        assert_eq!(next, [2.0, 1.0]);
    }
}
