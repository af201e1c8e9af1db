//! Optimizer updates, element by element: the value out of place (readers may hold the old one), the slots in
//! place.
//!
//! They must not know variables, versions or how a variable is partitioned: an update of any partition gives
//! the bits that an update of the whole gives.

use super::dispatch::zip_map;
use super::threads::Threads;

/// Gradient descent: `next = value − learning_rate · grad`.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn sgd(next: &mut [f32], value: &[f32], grad: &[f32], learning_rate: f32) {
    zip_map([next], [value, grad], |_, [value, grad]| [value - learning_rate * grad], Threads::One);
}

/// Gradient descent with momentum (Polyak 1964), in TensorFlow's form, where the velocity is not scaled by
/// the rate: `velocity = momentum · velocity + grad`, `next = value − learning_rate · velocity`.
///
/// With `nesterov` (Sutskever et al. 2013) `next = value − learning_rate · (grad + momentum · velocity)`,
/// with the new velocity. The velocity starts at 0.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn momentum(
    next: &mut [f32],
    value: &[f32],
    velocity: &mut [f32],
    grad: &[f32],
    learning_rate: f32,
    momentum: f32,
    nesterov: bool,
) {
    if nesterov {
        zip_map(
            [next, velocity],
            [value, grad],
            |[_, velocity], [value, grad]| {
                let velocity = momentum * velocity + grad;
                [value - learning_rate * (grad + momentum * velocity), velocity]
            },
            Threads::One,
        );
    } else {
        zip_map(
            [next, velocity],
            [value, grad],
            |[_, velocity], [value, grad]| {
                let velocity = momentum * velocity + grad;
                [value - learning_rate * velocity, velocity]
            },
            Threads::One,
        );
    }
}

/// The numbers of one Adam step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamStep {
    /// α of the paper.
    pub learning_rate: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// ε̂ of the paper: added to √v without bias correction.
    pub epsilon: f32,
    /// Number of this step, from 1.
    pub step: u64,
}

impl AdamStep {
    /// `α · √(1 − β₂ᵗ) / (1 − β₁ᵗ)`, in `f64` because `1 − β₂ᵗ` cancels for small `t`.
    fn corrected_rate(&self) -> f32 {
        assert!(self.step >= 1, "adam: steps are numbered from 1");
        let t = self.step as f64;
        let correction = |beta: f32| 1.0 - f64::from(beta).powf(t);
        (f64::from(self.learning_rate) * correction(self.beta2).sqrt() / correction(self.beta1)) as f32
    }
}

/// Adam, with the bias-corrected rate of Kingma & Ba 2015, end of section 2 (the ε̂ form, as in TensorFlow):
/// `m = β₁·m + (1−β₁)·grad`, `v = β₂·v + (1−β₂)·grad²`, `next = value − α·√(1−β₂ᵗ)/(1−β₁ᵗ) · m / (√v + ε̂)`.
///
/// Both moments start at 0.
///
/// # Panics
/// If the slices differ in length, or if `step` is 0.
#[track_caller]
pub fn adam(next: &mut [f32], value: &[f32], m: &mut [f32], v: &mut [f32], grad: &[f32], step: AdamStep) {
    let rate = step.corrected_rate();
    let AdamStep { beta1, beta2, epsilon, .. } = step;
    zip_map(
        [next, m, v],
        [value, grad],
        |[_, m, v], [value, grad]| {
            let m = beta1 * m + (1.0 - beta1) * grad;
            let v = beta2 * v + (1.0 - beta2) * (grad * grad);
            [value - rate * m / (v.sqrt() + epsilon), m, v]
        },
        Threads::One,
    );
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::testing::{assert_close, bits, floats};

    const ADAM: AdamStep = AdamStep { learning_rate: 0.01, beta1: 0.9, beta2: 0.999, epsilon: 1e-7, step: 1 };

    /// The value and two slots of a variable.
    #[derive(Clone)]
    struct State([Vec<f32>; 3]);

    impl State {
        fn new(len: usize) -> Self {
            Self([floats(len, 1), vec![0.0; len], vec![0.0; len]])
        }

        fn bits(&self) -> Vec<Vec<u32>> {
            self.0.iter().map(|x| bits(x)).collect()
        }
    }

    type Update = fn(&mut [f32], &[f32], &mut [f32], &mut [f32], &[f32], u64);

    /// Every optimizer, as an update of (next, value, slot, slot) by (gradient, step).
    const UPDATES: [Update; 4] = [
        |next, value, _, _, grad, _| sgd(next, value, grad, 0.1),
        |next, value, a, _, grad, _| momentum(next, value, a, grad, 0.1, 0.9, false),
        |next, value, a, _, grad, _| momentum(next, value, a, grad, 0.1, 0.9, true),
        |next, value, a, b, grad, step| adam(next, value, a, b, grad, AdamStep { step, ..ADAM }),
    ];

    /// Three steps of `update`, applied to the parts that `cuts` makes one after the other.
    fn train(update: Update, len: usize, cuts: &[usize]) -> State {
        let mut state = State::new(len);
        for step in 1..=3 {
            let grad = floats(len, 10 + step);
            let State([value, a, b]) = &mut state;
            let mut next = vec![f32::NAN; len];
            for part in cuts.windows(2).map(|cut| cut[0]..cut[1]) {
                let (next, value, grad) =
                    (&mut next[part.clone()], &value[part.clone()], &grad[part.clone()]);
                update(next, value, &mut a[part.clone()], &mut b[part], grad, step);
            }
            *value = next;
        }
        state
    }

    proptest! {
        #[test]
        fn partition_does_not_change_the_bits(len in 0usize..300, cut: prop::sample::Index) {
            let cut = cut.index(len + 1);
            for update in UPDATES {
                let (whole, parts) = ([0, len], [0, cut / 2, cut, len]);
                prop_assert_eq!(train(update, len, &whole).bits(), train(update, len, &parts).bits());
            }
        }

        #[test]
        fn agree_with_f64(len in 0usize..200) {
            for (which, update) in UPDATES.into_iter().enumerate() {
                let State([start, ..]) = State::new(len);
                let want = (0..len).map(|i| {
                    let (mut value, mut a, mut b) = (f64::from(start[i]), 0.0, 0.0);
                    for step in 1..=3 {
                        let grad = f64::from(floats(len, 10 + step as u64)[i]);
                        value -= match which {
                            0 => 0.1 * grad,
                            1 | 2 => {
                                a = 0.9 * a + grad;
                                0.1 * if which == 1 { a } else { grad + 0.9 * a }
                            }
                            _ => {
                                a = 0.9 * a + 0.1 * grad;
                                b = 0.999 * b + 0.001 * grad * grad;
                                let [one, two] = [0.9f64, 0.999].map(|beta| 1.0 - beta.powi(step));
                                0.01 * two.sqrt() / one * a / (b.sqrt() + 1e-7)
                            }
                        };
                    }
                    value
                });
                assert_close(&train(update, len, &[0, len]).0[0], want, 1.0);
            }
        }
    }

    /// While 1 − βᵗ matters it turns the first step into one of the learning rate, and late it vanishes.
    #[test]
    fn adam_corrects_the_bias() {
        for grad in [1.0, 1e3, 1e6] {
            let mut next = [0.0];
            adam(&mut next, &[0.0], &mut [0.0], &mut [0.0], &[grad], ADAM);
            assert_close(&next, [-0.01], 1.0);
        }
        for step in [1_000_000, u64::MAX] {
            assert_eq!(AdamStep { step, ..ADAM }.corrected_rate(), 0.01);
        }
    }

    #[test]
    #[should_panic(expected = "steps are numbered from 1")]
    fn adam_has_no_step_zero() {
        adam(&mut [], &[], &mut [], &mut [], &[], AdamStep { step: 0, ..ADAM });
    }
}
