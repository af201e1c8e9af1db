//! Which kernel applies a gradient, and the slots it keeps beside each value.

use kernels::cpu::{
    AdagradStep, AdamStep, AdamWStep, FtrlStep, MomentumStep, RmsPropStep, adagrad, adam, adamw, ftrl,
    momentum, rmsprop, sgd,
};
use messages::buffer::Buffer;
use messages::optimizer::OptimizerSpec;

use super::update::Update;

/// What each slot begins with that an optimizer keeps beside each slice: momentum's velocity, Adam's two moments,
/// Adagrad's sum of squares, RMSProp's mean square and velocity, FTRL's sum of squares and linear term.
pub(super) fn slots(optimizer: &OptimizerSpec) -> Vec<f32> {
    match *optimizer {
        OptimizerSpec::Sgd { .. } => vec![],
        OptimizerSpec::Momentum { .. } => vec![0.0],
        OptimizerSpec::Adam { .. } | OptimizerSpec::AdamW { .. } => vec![0.0; 2],
        OptimizerSpec::Adagrad { initial_accumulator, .. } => vec![initial_accumulator],
        OptimizerSpec::RmsProp { momentum, .. } => vec![0.0; if momentum > 0.0 { 2 } else { 1 }],
        OptimizerSpec::Ftrl { initial_accumulator, .. } => vec![initial_accumulator, 0.0],
    }
}

/// Writes the value after this update into `next`, and changes the slots in place.
pub(super) fn apply(
    update: &Update<'_>,
    next: &mut [f32],
    value: &[f32],
    gradient: &[f32],
    slots: &mut [Buffer],
) {
    let &Update { rate, step, terms, .. } = update;
    match (update.optimizer, slots) {
        (&OptimizerSpec::Sgd { learning_rate }, []) => {
            sgd(next, value, gradient, terms, learning_rate * rate);
        }
        (&OptimizerSpec::Momentum { learning_rate, momentum: decay, nesterov }, [velocity]) => {
            let step = MomentumStep { learning_rate: learning_rate * rate, momentum: decay, nesterov };
            momentum(next, value, velocity.as_f32_mut(), gradient, terms, step);
        }
        (&OptimizerSpec::Adam { learning_rate, beta1, beta2, epsilon }, [first, second]) => {
            let step = AdamStep { learning_rate: learning_rate * rate, beta1, beta2, epsilon, step };
            adam(next, value, first.as_f32_mut(), second.as_f32_mut(), gradient, terms, step);
        }
        (&OptimizerSpec::AdamW { learning_rate, beta1, beta2, epsilon, weight_decay }, [first, second]) => {
            let adam = AdamStep { learning_rate: learning_rate * rate, beta1, beta2, epsilon, step };
            let step = AdamWStep { adam, weight_decay };
            adamw(next, value, first.as_f32_mut(), second.as_f32_mut(), gradient, terms, step);
        }
        (&OptimizerSpec::Adagrad { learning_rate, epsilon, .. }, [accumulator]) => {
            let step = AdagradStep { learning_rate: learning_rate * rate, epsilon };
            adagrad(next, value, accumulator.as_f32_mut(), gradient, terms, step);
        }
        (
            &OptimizerSpec::RmsProp { learning_rate, decay, momentum, epsilon },
            [mean_square, velocity @ ..],
        ) => {
            let step = RmsPropStep { learning_rate: learning_rate * rate, decay, momentum, epsilon };
            let velocity = velocity.first_mut().map(Buffer::as_f32_mut);
            rmsprop(next, value, mean_square.as_f32_mut(), velocity, gradient, terms, step);
        }
        (&OptimizerSpec::Ftrl { learning_rate, l1, l2, .. }, [accumulator, linear]) => {
            let step = FtrlStep { learning_rate, rate, l1, l2 };
            ftrl(next, value, accumulator.as_f32_mut(), linear.as_f32_mut(), gradient, terms, step);
        }
        (optimizer, slots) => panic!("{} with {} slots", optimizer.name(), slots.len()),
    }
}
