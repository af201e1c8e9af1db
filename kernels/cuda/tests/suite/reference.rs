//! The operations of the suite in `f64`, written as their sources have them.

use pushpull_kernels::cpu::{AdamStep, Binary, Extent, GradientTerms, OptimizerStep, Side, Step, Unary};

use crate::chains::ChainCase;
use crate::rows::RowOperation;
use crate::runner::State;

/// A variable with its slots, in `f64`.
pub(crate) struct Wide {
    pub value: Vec<f64>,
    pub slots: Vec<Vec<f64>>,
}

/// Returns the moments of Adam, which it updates.
fn moments(adam: AdamStep, slots: &mut [f64], gradient: f64) -> [f64; 2] {
    let [beta1, beta2] = [adam.beta1, adam.beta2].map(f64::from);
    slots[0] = beta1 * slots[0] + (1.0 - beta1) * gradient;
    slots[1] = beta2 * slots[1] + (1.0 - beta2) * gradient * gradient;
    [slots[0], slots[1]]
}

/// Returns the moments of Adam without their bias.
fn corrected(adam: AdamStep, slots: &mut [f64], gradient: f64) -> [f64; 2] {
    let [first, second] = moments(adam, slots, gradient);
    let correction = |beta: f32| 1.0 - f64::from(beta).powi(adam.step as i32);
    [first / correction(adam.beta1), second / correction(adam.beta2)]
}

/// Returns the step of Adam in its ε̂ form.
fn adam_step(adam: AdamStep, slots: &mut [f64], gradient: f64) -> f64 {
    let [first, second] = moments(adam, slots, gradient);
    let correction = |beta: f32| 1.0 - f64::from(beta).powi(adam.step as i32);
    let rate = f64::from(adam.learning_rate) * correction(adam.beta2).sqrt() / correction(adam.beta1);
    rate * first / (second.sqrt() + f64::from(adam.epsilon))
}

/// Returns the new value of one element; for LAMB, the direction.
fn element(optimizer: OptimizerStep, value: f64, slots: &mut [f64], gradient: f64) -> f64 {
    let wide = f64::from;
    match optimizer {
        OptimizerStep::Sgd(rate) => value - wide(rate) * gradient,
        OptimizerStep::Momentum(step) => {
            slots[0] = wide(step.momentum) * slots[0] + gradient;
            let ahead = if step.nesterov { gradient + wide(step.momentum) * slots[0] } else { slots[0] };
            value - wide(step.learning_rate) * ahead
        }
        OptimizerStep::Adam(adam) => value - adam_step(adam, slots, gradient),
        OptimizerStep::AdamW(step) => {
            let kept = 1.0 - wide(step.adam.learning_rate) * wide(step.weight_decay);
            kept * value - adam_step(step.adam, slots, gradient)
        }
        OptimizerStep::Adagrad(step) => {
            slots[0] += gradient * gradient;
            value - wide(step.learning_rate) * gradient / (slots[0].sqrt() + wide(step.epsilon))
        }
        OptimizerStep::RmsProp(step) => {
            slots[0] = wide(step.decay) * slots[0] + (1.0 - wide(step.decay)) * gradient * gradient;
            let move_by = wide(step.learning_rate) * gradient / (slots[0] + wide(step.epsilon)).sqrt();
            let Some(velocity) = slots.get_mut(1) else { return value - move_by };
            *velocity = wide(step.momentum) * *velocity + move_by;
            value - *velocity
        }
        OptimizerStep::Ftrl(step) => {
            let sum = slots[0] + gradient * gradient;
            let alpha = wide(step.learning_rate);
            slots[1] += wide(step.rate) * gradient - (sum.sqrt() - slots[0].sqrt()) / alpha * value;
            slots[0] = sum;
            let shrunk = slots[1].signum() * wide(step.l1) - slots[1];
            let zero = slots[1].abs() <= wide(step.l1);
            if zero { 0.0 } else { shrunk / (sum.sqrt() / alpha + 2.0 * wide(step.l2)) }
        }
        OptimizerStep::Lamb(step) => {
            let [first, second] = corrected(step.adam, slots, gradient);
            first / (second.sqrt() + wide(step.adam.epsilon)) + wide(step.weight_decay) * value
        }
        OptimizerStep::Lion(step) => {
            let [beta1, beta2] = [step.beta1, step.beta2].map(wide);
            let c = beta1 * slots[0] + (1.0 - beta1) * gradient;
            slots[0] = beta2 * slots[0] + (1.0 - beta2) * gradient;
            let sign = if c == 0.0 { 0.0 } else { c.signum() };
            let kept = 1.0 - wide(step.learning_rate) * wide(step.weight_decay);
            kept * value - wide(step.learning_rate) * sign
        }
    }
}

/// Applies one step of an optimizer.
pub(crate) fn update(
    optimizer: OptimizerStep,
    terms: GradientTerms,
    state: &State,
    gradient: &[f32],
) -> Wide {
    let wide = |numbers: &Vec<f32>| numbers.iter().map(|&number| f64::from(number)).collect::<Vec<_>>();
    let (value, mut slots) = (wide(&state.value), state.slots.iter().map(wide).collect::<Vec<_>>());
    let mut next = Vec::new();
    for (at, &gradient) in gradient.iter().enumerate() {
        let decay = f64::from(terms.weight_decay);
        let decayed = if decay == 0.0 { 0.0 } else { decay * value[at] };
        let gradient = f64::from(terms.scale) * f64::from(gradient) + decayed;
        let mut own: Vec<f64> = slots.iter().map(|slot| slot[at]).collect();
        next.push(element(optimizer, value[at], &mut own, gradient));
        slots.iter_mut().zip(own).for_each(|(slot, own)| slot[at] = own);
    }
    if let OptimizerStep::Lamb(step) = optimizer {
        let norm = |numbers: &[f64]| numbers.iter().map(|number| number * number).sum::<f64>().sqrt();
        let (of_value, of_direction) = (norm(&value), norm(&next));
        let ratio = if of_value == 0.0 || of_direction == 0.0 { 1.0 } else { of_value / of_direction };
        let rate = f64::from(step.adam.learning_rate) * ratio;
        next.iter_mut().zip(&value).for_each(|(next, value)| *next = value - rate * *next);
    }
    Wide { value: next, slots }
}

/// Computes an operation on rows of `n` elements.
pub(crate) fn rows(operation: RowOperation, inputs: &[Vec<f32>], n: usize) -> Vec<f64> {
    let wide = |row: &[f32]| row.iter().map(|&number| f64::from(number)).collect::<Vec<f64>>();
    let larger = |a: f64, b: f64| if b > a || b.is_nan() { b } else { a };
    let softmax = |row: &[f64]| {
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, larger);
        let powers: Vec<f64> = row.iter().map(|x| (x - largest).exp()).collect();
        let sum: f64 = powers.iter().sum();
        (powers.into_iter().map(move |power| power / sum).collect::<Vec<f64>>(), largest, sum)
    };
    let one = |(at, row): (usize, &[f32])| {
        let row = wide(row);
        let gradient = || wide(&inputs[1][at * n..][..n]);
        match operation {
            RowOperation::Softmax => softmax(&row).0,
            RowOperation::CausalSoftmax => {
                let (mut all, ..) = softmax(&row[..at % n + 1]);
                all.resize(n, 0.0);
                all
            }
            RowOperation::LogSoftmax => {
                let (_, largest, sum) = softmax(&row);
                row.iter().map(|x| x - largest - sum.ln()).collect()
            }
            RowOperation::SoftmaxGrad => {
                let dot: f64 = row.iter().zip(gradient()).map(|(y, dy)| y * dy).sum();
                row.iter().zip(gradient()).map(|(y, dy)| y * (dy - dot)).collect()
            }
            RowOperation::LogSoftmaxGrad => {
                let sum: f64 = gradient().iter().sum();
                row.iter().zip(gradient()).map(|(y, dy)| dy - y.exp() * sum).collect()
            }
        }
    };
    inputs[0].chunks(n.max(1)).enumerate().flat_map(one).collect()
}

fn unary(f: Unary, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match f {
        Unary::Neg => -x,
        Unary::Square => x * x,
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Abs => x.abs(),
        Unary::Log => x.ln(),
        Unary::Exp => x.exp(),
        Unary::Sigmoid => sigmoid(x),
        Unary::Tanh => x.tanh(),
        Unary::Relu => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
        Unary::LeakyRelu(slope) => {
            if x < 0.0 {
                f64::from(slope) * x
            } else {
                x
            }
        }
        Unary::Gelu => x * sigmoid(2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x)),
    }
}

/// Returns the derivative of a function, times `dy`, from the value that the forward pass saves for it.
fn unary_grad(f: Unary, saved: f64, dy: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let slope = match f {
        Unary::Neg => -1.0,
        Unary::Square => 2.0 * saved,
        Unary::Sqrt => 1.0 / (2.0 * saved),
        Unary::Rsqrt => -0.5 * saved * saved * saved,
        Unary::Abs => {
            if saved == 0.0 {
                return 0.0;
            } else {
                saved.signum()
            }
        }
        Unary::Log => 1.0 / saved,
        Unary::Exp => saved,
        Unary::Sigmoid => saved * (1.0 - saved),
        Unary::Tanh => 1.0 - saved * saved,
        Unary::Relu => {
            if saved > 0.0 {
                1.0
            } else {
                return 0.0;
            }
        }
        Unary::LeakyRelu(slope) => {
            if saved > 0.0 {
                1.0
            } else {
                f64::from(slope)
            }
        }
        Unary::Gelu => {
            let factor = 2.0 * (2.0 / std::f64::consts::PI).sqrt();
            let gate = sigmoid(factor * (saved + 0.044_715 * saved * saved * saved));
            gate + saved * gate * (1.0 - gate) * factor * (1.0 + 3.0 * 0.044_715 * saved * saved)
        }
    };
    slope * dy
}

/// Computes a chain.
pub(crate) fn chain(case: &ChainCase) -> Vec<f64> {
    let compute = |(at, &first): (usize, &f32)| {
        let operand = |operand: &pushpull_kernels::cpu::Operand| {
            let numbers = &case.operands[operand.index];
            f64::from(match operand.extent {
                Extent::Whole => numbers[at],
                Extent::Scalar => numbers[0],
                Extent::Row => numbers[at % numbers.len()],
            })
        };
        case.steps.iter().fold(f64::from(first), |x, step| match step {
            Step::Unary(f) => unary(*f, x),
            Step::UnaryGrad(f, saved) => unary_grad(*f, operand(saved), x),
            Step::Binary(f, other, side) => {
                let (a, b) = match side {
                    Side::A => (operand(other), x),
                    Side::B => (x, operand(other)),
                };
                match f {
                    Binary::Add => a + b,
                    Binary::Sub => a - b,
                    Binary::Mul => a * b,
                    Binary::Div => a / b,
                }
            }
        })
    };
    case.first.iter().enumerate().map(compute).collect()
}
