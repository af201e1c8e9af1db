//! Defines, for each optimizer, the kernel that applies a gradient and the slots that are kept beside each
//! value.

use pushpull_kernels::cpu::{
    AdagradStep, AdamStep, AdamWStep, FtrlStep, LambStep, LionStep, MomentumStep, RmsPropStep, adagrad, adam,
    adamw, ftrl, lamb, lion, momentum, rmsprop, sgd,
};
use pushpull_messages::optimizer::{OptimizerSpec, UpdateSpec};
use pushpull_messages::variable::VariableSpec;

use super::update::Update;

/// Returns the initial value of each slot that an optimizer keeps for a slice: momentum's velocity, the two
/// moments of Adam and LAMB, Adagrad's sum of squares, RMSProp's mean square and velocity, FTRL's sum of
/// squares and linear term, Lion's momentum.
pub(super) fn slots(optimizer: &OptimizerSpec) -> Vec<f32> {
    match *optimizer {
        OptimizerSpec::Sgd { .. } => vec![],
        OptimizerSpec::Momentum { .. } => vec![0.0],
        OptimizerSpec::Adam { .. } | OptimizerSpec::AdamW { .. } | OptimizerSpec::Lamb { .. } => {
            vec![0.0; 2]
        }
        OptimizerSpec::Adagrad { initial_accumulator, .. } => vec![initial_accumulator],
        OptimizerSpec::RmsProp { momentum, .. } => vec![0.0; if momentum > 0.0 { 2 } else { 1 }],
        OptimizerSpec::Ftrl { initial_accumulator, .. } => vec![initial_accumulator, 0.0],
        OptimizerSpec::Lion { .. } => vec![0.0],
    }
}

/// Returns the names of the slots in a checkpoint, in the order of [`slots`].
fn slot_names(optimizer: &OptimizerSpec) -> &'static [&'static str] {
    match *optimizer {
        OptimizerSpec::Sgd { .. } => &[],
        OptimizerSpec::Momentum { .. } => &["momentum"],
        OptimizerSpec::Adam { .. } | OptimizerSpec::AdamW { .. } | OptimizerSpec::Lamb { .. } => &["m", "v"],
        OptimizerSpec::Adagrad { .. } => &["accumulator"],
        OptimizerSpec::RmsProp { momentum, .. } if momentum > 0.0 => &["mean_square", "velocity"],
        OptimizerSpec::RmsProp { .. } => &["mean_square"],
        OptimizerSpec::Ftrl { .. } => &["accumulator", "linear"],
        // Like Adam's first moment, Lion's momentum is a mean of gradients, so it has the same name.
        OptimizerSpec::Lion { .. } => &["m"],
    }
}

/// Returns the name and initial value of each slot that a job keeps for a variable, in the order in which a
/// checkpoint contains the slots. There are none if the variable is not trained or is frozen.
///
/// If a job changes a variable's optimizer, a slot continues with the values that the earlier optimizer saved
/// under the same name.
pub fn initial_slots(update: &UpdateSpec, variable: &VariableSpec) -> Vec<(&'static str, f32)> {
    let rule = update.rule(variable);
    if rule.frozen || !variable.trainable {
        return Vec::new();
    }
    slot_names(&rule.optimizer).iter().copied().zip(slots(&rule.optimizer)).collect()
}

/// Writes the value after this update to `next`, and changes the slots in place.
///
/// # Panics
/// If the number of `slots` is not the number that the optimizer needs.
pub(super) fn apply(
    update: &Update<'_>,
    next: &mut [f32],
    value: &[f32],
    gradient: &[f32],
    slots: &mut [&mut [f32]],
) {
    let &Update { learning_rate_factor: rate, step, terms, .. } = update;
    match (update.optimizer, slots) {
        (&OptimizerSpec::Sgd { learning_rate }, []) => {
            sgd(next, value, gradient, terms, learning_rate * rate);
        }
        (&OptimizerSpec::Momentum { learning_rate, momentum: decay, nesterov }, [velocity]) => {
            let step = MomentumStep { learning_rate: learning_rate * rate, momentum: decay, nesterov };
            momentum(next, value, velocity, gradient, terms, step);
        }
        (&OptimizerSpec::Adam { learning_rate, beta1, beta2, epsilon }, [first, second]) => {
            let step = AdamStep { learning_rate: learning_rate * rate, beta1, beta2, epsilon, step };
            adam(next, value, first, second, gradient, terms, step);
        }
        (&OptimizerSpec::AdamW { learning_rate, beta1, beta2, epsilon, weight_decay }, [first, second]) => {
            let adam = AdamStep { learning_rate: learning_rate * rate, beta1, beta2, epsilon, step };
            let step = AdamWStep { adam, weight_decay };
            adamw(next, value, first, second, gradient, terms, step);
        }
        (&OptimizerSpec::Adagrad { learning_rate, epsilon, .. }, [accumulator]) => {
            let step = AdagradStep { learning_rate: learning_rate * rate, epsilon };
            adagrad(next, value, accumulator, gradient, terms, step);
        }
        (
            &OptimizerSpec::RmsProp { learning_rate, decay, momentum, epsilon },
            [mean_square, velocity @ ..],
        ) => {
            let step = RmsPropStep { learning_rate: learning_rate * rate, decay, momentum, epsilon };
            let velocity = velocity.first_mut().map(|velocity| &mut **velocity);
            rmsprop(next, value, mean_square, velocity, gradient, terms, step);
        }
        (&OptimizerSpec::Ftrl { learning_rate, l1, l2, .. }, [accumulator, linear]) => {
            let step = FtrlStep { learning_rate, rate, l1, l2 };
            ftrl(next, value, accumulator, linear, gradient, terms, step);
        }
        (&OptimizerSpec::Lamb { learning_rate, beta1, beta2, epsilon, weight_decay }, [first, second]) => {
            let adam = AdamStep { learning_rate: learning_rate * rate, beta1, beta2, epsilon, step };
            let step = LambStep { adam, weight_decay };
            lamb(next, value, first, second, gradient, terms, step);
        }
        (&OptimizerSpec::Lion { learning_rate, beta1, beta2, weight_decay }, [momentum]) => {
            let step = LionStep { learning_rate: learning_rate * rate, beta1, beta2, weight_decay };
            lion(next, value, momentum, gradient, terms, step);
        }
        (optimizer, slots) => panic!("{} with {} slots", optimizer.name(), slots.len()),
    }
}
