//! One step of any optimizer, as a value. A device that applies it to its own memory and the processor then
//! have the same settings. This module must not depend on variables.

use super::{
    AdagradStep, AdamStep, AdamWStep, FtrlStep, GradientTerms, LambStep, LionStep, MomentumStep, RmsPropStep,
    adagrad, adam, adamw, ftrl, lamb, lion, momentum, rmsprop, sgd,
};

/// One step of an optimizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OptimizerStep {
    /// Gradient descent with this learning rate; it has no slot.
    Sgd(f32),
    /// Gradient descent with momentum; it has one slot.
    Momentum(MomentumStep),
    /// Adam; it has two slots.
    Adam(AdamStep),
    /// AdamW; it has two slots.
    AdamW(AdamWStep),
    /// Adagrad; it has one slot.
    Adagrad(AdagradStep),
    /// RMSProp; it has one slot, or two with momentum.
    RmsProp(RmsPropStep),
    /// FTRL-proximal; it has two slots.
    Ftrl(FtrlStep),
    /// LAMB; it has two slots, and needs all elements of the variable.
    Lamb(LambStep),
    /// Lion; it has one slot.
    Lion(LionStep),
}

impl OptimizerStep {
    /// Writes the value after this step to `next`, and changes the slots in place, with the function that has
    /// the optimizer's name. If `value` is `None`, `next` has the value, which is replaced.
    ///
    /// # Panics
    /// If the number of slots differs from that of the optimizer, if the slices differ in length, if Adam,
    /// AdamW or LAMB has the step 0, or if `value` is `None` with LAMB, which reads it twice.
    #[track_caller]
    pub fn apply(
        self,
        next: &mut [f32],
        value: Option<&[f32]>,
        slots: &mut [&mut [f32]],
        gradient: &[f32],
        terms: GradientTerms,
    ) {
        match (self, slots) {
            (Self::Sgd(rate), []) => sgd(next, value, gradient, terms, rate),
            (Self::Momentum(step), [a]) => momentum(next, value, a, gradient, terms, step),
            (Self::Adam(step), [a, b]) => adam(next, value, a, b, gradient, terms, step),
            (Self::AdamW(step), [a, b]) => adamw(next, value, a, b, gradient, terms, step),
            (Self::Adagrad(step), [a]) => adagrad(next, value, a, gradient, terms, step),
            (Self::RmsProp(step), [a]) => rmsprop(next, value, a, None, gradient, terms, step),
            (Self::RmsProp(step), [a, b]) => rmsprop(next, value, a, Some(&mut **b), gradient, terms, step),
            (Self::Ftrl(step), [a, b]) => ftrl(next, value, a, b, gradient, terms, step),
            (Self::Lamb(step), [a, b]) => {
                lamb(next, value.expect("LAMB needs the old value"), a, b, gradient, terms, step);
            }
            (Self::Lion(step), [a]) => lion(next, value, a, gradient, terms, step),
            (step, slots) => panic!("{} slots for {step:?}", slots.len()),
        }
    }
}
