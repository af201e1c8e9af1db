//! Every optimizer agrees with its reference, on every device.

use pushpull_kernels::cpu::{
    AdagradStep, AdamStep, AdamWStep, FtrlStep, GradientTerms, LambStep, LionStep, MomentumStep,
    OptimizerStep, RmsPropStep,
};

use crate::numbers::{Numbers, assert_close};
use crate::reference;
use crate::runner::{Runner, State, runners};

/// The largest difference from the reference, relative to numbers above 1.
const TOLERANCE: f64 = 1e-5;
const ADAM: AdamStep = AdamStep { learning_rate: 0.01, beta1: 0.9, beta2: 0.999, epsilon: 1e-7, step: 3 };
const RMSPROP: RmsPropStep = RmsPropStep { learning_rate: 0.01, decay: 0.9, momentum: 0.5, epsilon: 1e-3 };
/// The terms of the gradient with which every optimizer is tested.
pub(crate) const TERMS: [GradientTerms; 2] =
    [GradientTerms::PLAIN, GradientTerms { scale: 0.25, weight_decay: 0.125 }];

/// Returns every optimizer with its number of slots.
pub(crate) fn optimizers() -> Vec<(OptimizerStep, usize)> {
    let momentum = |nesterov| MomentumStep { learning_rate: 0.1, momentum: 0.9, nesterov };
    vec![
        (OptimizerStep::Sgd(0.1), 0),
        (OptimizerStep::Momentum(momentum(false)), 1),
        (OptimizerStep::Momentum(momentum(true)), 1),
        (OptimizerStep::Adam(ADAM), 2),
        (OptimizerStep::AdamW(AdamWStep { adam: ADAM, weight_decay: 0.5 }), 2),
        (OptimizerStep::Adagrad(AdagradStep { learning_rate: 0.1, epsilon: 1e-7 }), 1),
        (OptimizerStep::RmsProp(RMSPROP), 1),
        (OptimizerStep::RmsProp(RMSPROP), 2),
        (OptimizerStep::Ftrl(FtrlStep { learning_rate: 0.1, rate: 0.5, l1: 0.01, l2: 0.02 }), 2),
        (OptimizerStep::Lamb(LambStep { adam: ADAM, weight_decay: 0.25 }), 2),
        (
            OptimizerStep::Lion(LionStep { learning_rate: 0.01, beta1: 0.9, beta2: 0.99, weight_decay: 0.5 }),
            1,
        ),
    ]
}

/// Returns a state and a gradient of `count` elements. The slots are not negative, as a sum of squares.
pub(crate) fn drawn(numbers: &mut Numbers, slots: usize, count: usize) -> (State, Vec<f32>) {
    let value = numbers.between(-2.0, 2.0, count);
    let slots = (0..slots).map(|_| numbers.between(0.01, 1.0, count)).collect();
    (State { value, slots }, numbers.between(-1.0, 1.0, count))
}

fn check(name: &str, runner: &mut dyn Runner, optimizer: OptimizerStep, state: &State, gradient: &[f32]) {
    for terms in TERMS {
        for in_place in [false, true] {
            let expected = reference::update(optimizer, terms, state, gradient);
            let got = runner.update(optimizer, terms, state, gradient, in_place).unwrap();
            let what = format!("{name}, {optimizer:?}, {} elements", gradient.len());
            assert_close(&what, &got.value, &expected.value, TOLERANCE);
            for (got, expected) in got.slots.iter().zip(&expected.slots) {
                assert_close(&what, got, expected, TOLERANCE);
            }
        }
    }
}

#[test]
fn every_optimizer_agrees_with_its_reference() {
    for (name, mut runner) in runners(1) {
        let mut numbers = Numbers(1);
        for (optimizer, slots) in optimizers() {
            for count in [0, 1, 255, 256, 257, 1000 + numbers.below(1000)] {
                let (state, gradient) = drawn(&mut numbers, slots, count);
                check(name, &mut *runner, optimizer, &state, &gradient);
            }
        }
    }
}

#[test]
fn a_nan_stays_a_nan() {
    for (name, mut runner) in runners(2) {
        let mut numbers = Numbers(2);
        for (optimizer, slots) in optimizers() {
            let (mut state, mut gradient) = drawn(&mut numbers, slots, 300);
            (state.value[7], gradient[11], gradient[290]) = (f32::NAN, f32::NAN, 0.0);
            check(name, &mut *runner, optimizer, &state, &gradient);
        }
    }
}

#[test]
fn a_grid_with_fewer_threads_than_elements_updates_all() {
    // The largest grid has 262 144 threads.
    let count = (1 << 18) + 300;
    for (name, mut runner) in runners(3) {
        let mut numbers = Numbers(3);
        let (state, gradient) = drawn(&mut numbers, 0, count);
        let expected = reference::update(OptimizerStep::Sgd(0.1), GradientTerms::PLAIN, &state, &gradient);
        let got =
            runner.update(OptimizerStep::Sgd(0.1), GradientTerms::PLAIN, &state, &gradient, true).unwrap();
        assert_close(name, &got.value, &expected.value, TOLERANCE);
    }
}

#[test]
fn moving_averages_agree_with_their_reference() {
    for (name, mut runner) in runners(4) {
        for count in [0, 1, 257, 1500] {
            let mut numbers = Numbers(count as u64);
            let (averages, value) = (numbers.between(-1.0, 1.0, count), numbers.between(-1.0, 1.0, count));
            let one = |(average, value): (&f32, &f32)| {
                f64::from(*average) - (1.0 - f64::from(0.9f32)) * (f64::from(*average) - f64::from(*value))
            };
            let expected: Vec<f64> = averages.iter().zip(&value).map(one).collect();
            assert_close(name, &runner.average(&averages, &value, 0.9).unwrap(), &expected, TOLERANCE);
        }
    }
}
