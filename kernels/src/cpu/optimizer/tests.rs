//! Tests properties of every optimizer: updates of parts give the same bits as an update of the whole, and
//! the results agree with `f64`. The tests of LAMB, which needs whole variables, are in its own file.

use proptest::prelude::*;

use super::*;
use crate::cpu::tests::{assert_close, bits, floats};

const ADAM: AdamStep = AdamStep { learning_rate: 0.01, beta1: 0.9, beta2: 0.999, epsilon: 1e-7, step: 1 };
const ADAGRAD: AdagradStep = AdagradStep { learning_rate: 0.1, epsilon: 1e-7 };
const RMSPROP: RmsPropStep = RmsPropStep { learning_rate: 0.01, decay: 0.9, momentum: 0.5, epsilon: 1e-3 };
const FTRL: FtrlStep = FtrlStep { learning_rate: 0.1, rate: 0.5, l1: 0.01, l2: 0.02 };
const LION: LionStep = LionStep { learning_rate: 0.01, beta1: 0.9, beta2: 0.99, weight_decay: 0.5 };
const DECAY: f32 = 0.25;

/// The gradient terms with which every optimizer is tested.
const TERMS: [GradientTerms; 2] = [GradientTerms::PLAIN, GradientTerms { scale: 0.25, weight_decay: 0.125 }];

/// The value and two slots of a variable.
#[derive(Clone)]
struct State([Vec<f32>; 3]);

/// The arguments of one update of a part of a variable.
struct Step<'a> {
    next: &'a mut [f32],
    /// `None` if `next` has the value.
    value: Option<&'a [f32]>,
    slots: [&'a mut [f32]; 2],
    gradient: &'a [f32],
    terms: GradientTerms,
    step: u64,
}

/// A function that updates one element in `f64`. Its arguments are the value and the slots, which it
/// changes, the gradient, and the number of the step.
type Model = fn(&mut f64, &mut [f64; 2], f64, i32);

/// An optimizer: its kernel, the same update in `f64`, and the initial values of its slots.
struct Optimizer {
    kernel: fn(Step<'_>),
    model: Model,
    start: [f32; 2],
}

fn moments([m, v]: &mut [f64; 2], gradient: f64, step: i32) -> f64 {
    *m = 0.9 * *m + 0.1 * gradient;
    *v = 0.999 * *v + 0.001 * gradient * gradient;
    let [one, two] = [0.9f64, 0.999].map(|beta| 1.0 - beta.powi(step));
    0.01 * two.sqrt() / one * *m / (v.sqrt() + 1e-7)
}

const OPTIMIZERS: [Optimizer; 10] = [
    Optimizer {
        kernel: |s| sgd(s.next, s.value, s.gradient, s.terms, 0.1),
        model: |value, _, gradient, _| *value -= 0.1 * gradient,
        start: [0.0; 2],
    },
    Optimizer {
        kernel: |s| {
            let step = MomentumStep { learning_rate: 0.1, momentum: 0.9, nesterov: false };
            let [velocity, _] = s.slots;
            momentum(s.next, s.value, velocity, s.gradient, s.terms, step);
        },
        model: |value, [velocity, _], gradient, _| {
            *velocity = 0.9 * *velocity + gradient;
            *value -= 0.1 * *velocity;
        },
        start: [0.0; 2],
    },
    Optimizer {
        kernel: |s| {
            let step = MomentumStep { learning_rate: 0.1, momentum: 0.9, nesterov: true };
            let [velocity, _] = s.slots;
            momentum(s.next, s.value, velocity, s.gradient, s.terms, step);
        },
        model: |value, [velocity, _], gradient, _| {
            *velocity = 0.9 * *velocity + gradient;
            *value -= 0.1 * (gradient + 0.9 * *velocity);
        },
        start: [0.0; 2],
    },
    Optimizer {
        kernel: |s| {
            let [m, v] = s.slots;
            adam(s.next, s.value, m, v, s.gradient, s.terms, AdamStep { step: s.step, ..ADAM });
        },
        model: |value, slots, gradient, step| *value -= moments(slots, gradient, step),
        start: [0.0; 2],
    },
    Optimizer {
        kernel: |s| {
            let [m, v] = s.slots;
            let step = AdamWStep { adam: AdamStep { step: s.step, ..ADAM }, weight_decay: 0.5 };
            adamw(s.next, s.value, m, v, s.gradient, s.terms, step);
        },
        model: |value, slots, gradient, step| {
            *value = *value * (1.0 - 0.01 * 0.5) - moments(slots, gradient, step);
        },
        start: [0.0; 2],
    },
    Optimizer {
        kernel: |s| {
            let [accumulator, _] = s.slots;
            adagrad(s.next, s.value, accumulator, s.gradient, s.terms, ADAGRAD);
        },
        model: |value, [accumulator, _], gradient, _| {
            *accumulator += gradient * gradient;
            *value -= 0.1 * gradient / (accumulator.sqrt() + 1e-7);
        },
        start: [0.1, 0.0],
    },
    Optimizer {
        kernel: |s| {
            let [mean_square, velocity] = s.slots;
            rmsprop(s.next, s.value, mean_square, Some(velocity), s.gradient, s.terms, RMSPROP);
        },
        model: |value, [mean_square, velocity], gradient, _| {
            *mean_square = 0.9 * *mean_square + 0.1 * gradient * gradient;
            *velocity = 0.5 * *velocity + 0.01 * gradient / (*mean_square + 1e-3).sqrt();
            *value -= *velocity;
        },
        start: [0.0; 2],
    },
    Optimizer {
        kernel: |s| {
            let [mean_square, _] = s.slots;
            rmsprop(s.next, s.value, mean_square, None, s.gradient, s.terms, RMSPROP);
        },
        model: |value, [mean_square, _], gradient, _| {
            *mean_square = 0.9 * *mean_square + 0.1 * gradient * gradient;
            *value -= 0.01 * gradient / (*mean_square + 1e-3).sqrt();
        },
        start: [0.0; 2],
    },
    Optimizer {
        kernel: |s| {
            let [accumulator, linear] = s.slots;
            ftrl(s.next, s.value, accumulator, linear, s.gradient, s.terms, FTRL);
        },
        model: |value, [accumulator, linear], gradient, _| {
            let n = *accumulator + gradient * gradient;
            *linear += 0.5 * gradient - (n.sqrt() - accumulator.sqrt()) / 0.1 * *value;
            *accumulator = n;
            let shrunk = linear.signum() * (linear.abs() - 0.01).max(0.0);
            *value = -shrunk / (n.sqrt() / 0.1 + 2.0 * 0.02);
        },
        start: [0.1, 0.0],
    },
    Optimizer {
        kernel: |s| {
            let [m, _] = s.slots;
            lion(s.next, s.value, m, s.gradient, s.terms, LION);
        },
        model: |value, [m, _], gradient, _| {
            let sign = (0.9 * *m + 0.1 * gradient).signum();
            *m = 0.99 * *m + 0.01 * gradient;
            *value = *value * (1.0 - 0.01 * 0.5) - 0.01 * sign;
        },
        start: [0.0; 2],
    },
];

/// Applies three steps of an optimizer to `len` elements. Each step updates the parts between successive
/// `cuts` one by one, in place or beside the old values. Returns the state and the moving averages of the
/// values.
fn train(
    optimizer: &Optimizer,
    terms: GradientTerms,
    len: usize,
    cuts: &[usize],
    in_place: bool,
) -> (State, Vec<f32>) {
    let [a, b] = optimizer.start;
    let mut state = State([floats(len, 1), vec![a; len], vec![b; len]]);
    let mut averaged = state.0[0].clone();
    for step in 1..=3 {
        let gradient = floats(len, 10 + step);
        let State([value, a, b]) = &mut state;
        let (mut next, mut next_average) = match in_place {
            true => (value.clone(), averaged.clone()),
            false => (vec![f32::NAN; len], vec![f32::NAN; len]),
        };
        for part in cuts.windows(2).map(|cut| cut[0]..cut[1]) {
            (optimizer.kernel)(Step {
                next: &mut next[part.clone()],
                value: (!in_place).then_some(&value[part.clone()]),
                slots: [&mut a[part.clone()], &mut b[part.clone()]],
                gradient: &gradient[part.clone()],
                terms,
                step,
            });
            let part_average = &mut next_average[part.clone()];
            let old_average = (!in_place).then_some(&averaged[part.clone()]);
            average(part_average, old_average, &next[part], DECAY);
        }
        (*value, averaged) = (next, next_average);
    }
    (state, averaged)
}

fn all_bits((State(state), averaged): (State, Vec<f32>)) -> Vec<Vec<u32>> {
    state.iter().chain([&averaged]).map(|x| bits(x)).collect()
}

proptest! {
    /// Checks that updates of parts, and in place, give the same bits as an update of the whole, even if a
    /// part or the whole is empty (A).
    #[test]
    fn parts_and_places_do_not_change_the_bits(len in 0usize..300, cut: prop::sample::Index) {
        let cut = cut.index(len + 1);
        for optimizer in &OPTIMIZERS {
            for terms in TERMS {
                let (whole, parts) = ([0, len], [0, cut / 2, cut, cut, len]);
                let whole = all_bits(train(optimizer, terms, len, &whole, false));
                for in_place in [false, true] {
                    prop_assert_eq!(&whole, &all_bits(train(optimizer, terms, len, &parts, in_place)));
                }
            }
        }
    }

    /// Checks that, after three updates, the values and their moving averages agree with those computed in
    /// `f64` (B).
    #[test]
    fn agree_with_f64(len in 0usize..200) {
        for optimizer in &OPTIMIZERS {
            for terms in TERMS {
                let want = (0..len).map(|i| {
                    let mut value = f64::from(floats(len, 1)[i]);
                    let (mut slots, mut averaged) = (optimizer.start.map(f64::from), value);
                    for step in 1..=3 {
                        let gradient = f64::from(terms.scale) * f64::from(floats(len, 10 + step as u64)[i])
                            + f64::from(terms.weight_decay) * value;
                        (optimizer.model)(&mut value, &mut slots, gradient, step);
                        averaged = 0.25 * averaged + 0.75 * value;
                    }
                    (value, averaged)
                });
                let want: Vec<(f64, f64)> = want.collect();
                let (State([value, ..]), averaged) = train(optimizer, terms, len, &[0, len], false);
                assert_close(&value, want.iter().map(|want| want.0), 1.0);
                assert_close(&averaged, want.iter().map(|want| want.1), 1.0);
            }
        }
    }
}

/// Checks that the terms `PLAIN` change no bit of an update, even at zeros of either sign and at infinity
/// (C). Adding `0 · value` to the gradient would change bits there.
#[test]
fn plain_terms_change_no_bit() {
    let (value, gradient) = ([-0.0, 0.0, f32::INFINITY, 1.0, -0.0], [-0.0, -0.0, 1.0, -0.0, 0.0]);
    let mut next = [f32::NAN; 5];
    sgd(&mut next, Some(&value), &gradient, GradientTerms::PLAIN, 0.5);
    let want: Vec<f32> = value.iter().zip(gradient).map(|(value, gradient)| value - 0.5 * gradient).collect();
    assert_eq!(bits(&next), bits(&want));
}

/// Checks that a step of SGD with gradient 0 multiplies the value by `1 − learning_rate · weight_decay`.
#[test]
fn a_decay_alone_shrinks_the_value() {
    let mut next = [f32::NAN];
    sgd(&mut next, Some(&[2.0]), &[0.0], GradientTerms { scale: 1.0, weight_decay: 0.5 }, 0.5);
    assert_eq!(next, [1.5]);
}
