//! Defines, for each optimizer, the step that applies a gradient and the slots that are kept beside each
//! value. The processor and a device apply the same step.

use pushpull_kernels::cpu::{
    AdagradStep, AdamStep, AdamWStep, FtrlStep, LambStep, LionStep, MomentumStep, OptimizerStep, RmsPropStep,
};
use pushpull_messages::optimizer::{OptimizerSpec, UpdateSpec};
use pushpull_messages::variable::VariableSpec;

use super::update::Update;

/// Returns the initial value of each slot that an optimizer keeps for a slice: momentum's velocity, the two
/// moments of Adam and LAMB, Adagrad's sum of squares, RMSProp's mean square and velocity, FTRL's sum of
/// squares and linear term, Lion's momentum.
pub(crate) fn slots(optimizer: &OptimizerSpec) -> Vec<f32> {
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

/// Returns the step that an update makes.
pub(super) const fn step(update: &Update<'_>) -> OptimizerStep {
    optimizer_step(update.optimizer, update.learning_rate_factor, update.step)
}

/// Returns the step of an optimizer whose learning rate is multiplied by `rate`. `step` is the number of the
/// update; the first one has the number 1.
pub(crate) const fn optimizer_step(optimizer: &OptimizerSpec, rate: f32, step: u64) -> OptimizerStep {
    match *optimizer {
        OptimizerSpec::Sgd { learning_rate } => OptimizerStep::Sgd(learning_rate * rate),
        OptimizerSpec::Momentum { learning_rate, momentum, nesterov } => {
            OptimizerStep::Momentum(MomentumStep { learning_rate: learning_rate * rate, momentum, nesterov })
        }
        OptimizerSpec::Adam { learning_rate, beta1, beta2, epsilon } => {
            OptimizerStep::Adam(AdamStep { learning_rate: learning_rate * rate, beta1, beta2, epsilon, step })
        }
        OptimizerSpec::AdamW { learning_rate, beta1, beta2, epsilon, weight_decay } => {
            let adam = AdamStep { learning_rate: learning_rate * rate, beta1, beta2, epsilon, step };
            OptimizerStep::AdamW(AdamWStep { adam, weight_decay })
        }
        OptimizerSpec::Adagrad { learning_rate, epsilon, .. } => {
            OptimizerStep::Adagrad(AdagradStep { learning_rate: learning_rate * rate, epsilon })
        }
        OptimizerSpec::RmsProp { learning_rate, decay, momentum, epsilon } => {
            let learning_rate = learning_rate * rate;
            OptimizerStep::RmsProp(RmsPropStep { learning_rate, decay, momentum, epsilon })
        }
        OptimizerSpec::Ftrl { learning_rate, l1, l2, .. } => {
            OptimizerStep::Ftrl(FtrlStep { learning_rate, rate, l1, l2 })
        }
        OptimizerSpec::Lamb { learning_rate, beta1, beta2, epsilon, weight_decay } => {
            let adam = AdamStep { learning_rate: learning_rate * rate, beta1, beta2, epsilon, step };
            OptimizerStep::Lamb(LambStep { adam, weight_decay })
        }
        OptimizerSpec::Lion { learning_rate, beta1, beta2, weight_decay } => {
            let learning_rate = learning_rate * rate;
            OptimizerStep::Lion(LionStep { learning_rate, beta1, beta2, weight_decay })
        }
    }
}

/// Writes the value after this update to `next`, and changes the slots in place. If `value` is `None`, `next`
/// has the value, which is replaced.
///
/// # Panics
/// If the number of `slots` is not the number that the optimizer needs.
pub(super) fn apply(
    update: &Update<'_>,
    next: &mut [f32],
    value: Option<&[f32]>,
    gradient: &[f32],
    slots: &mut [&mut [f32]],
) {
    step(update).apply(next, value, slots, gradient, update.terms);
}
