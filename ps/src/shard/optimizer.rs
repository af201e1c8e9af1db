//! Which kernel applies a gradient, and how many slots it keeps beside each value.

use kernels::cpu::{AdamStep, adam, momentum, sgd};
use messages::buffer::Buffer;
use messages::id::Version;
use messages::optimizer::OptimizerSpec;

/// How many slots an optimizer keeps beside each slice: momentum's velocity, Adam's two moments.
pub(super) const fn slots(optimizer: &OptimizerSpec) -> usize {
    match optimizer {
        OptimizerSpec::Sgd { .. } => 0,
        OptimizerSpec::Momentum { .. } => 1,
        OptimizerSpec::Adam { .. } => 2,
    }
}

/// Writes the value after this update into `next`, and changes the slots in place. `version` is the one that the
/// update makes.
pub(super) fn apply(
    optimizer: &OptimizerSpec,
    next: &mut [f32],
    value: &[f32],
    gradient: &[f32],
    slots: &mut [Buffer],
    version: Version,
) {
    match (optimizer, slots) {
        (&OptimizerSpec::Sgd { learning_rate }, []) => sgd(next, value, gradient, learning_rate),
        (&OptimizerSpec::Momentum { learning_rate, momentum: decay, nesterov }, [velocity]) => {
            momentum(next, value, velocity.as_f32_mut(), gradient, learning_rate, decay, nesterov);
        }
        (&OptimizerSpec::Adam { learning_rate, beta1, beta2, epsilon }, [first, second]) => {
            let step = AdamStep { learning_rate, beta1, beta2, epsilon, step: version.0 };
            adam(next, value, first.as_f32_mut(), second.as_f32_mut(), gradient, step);
        }
        (optimizer, slots) => panic!("{} with {} slots", optimizer.name(), slots.len()),
    }
}
