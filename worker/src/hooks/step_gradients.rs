//! The gradients of a step, as hooks see them before they are pushed. This module must not depend on
//! connections.

use pushpull_messages::id::{GlobalStep, LocalStep, VariableId};
use pushpull_messages::tensor::Shape;
use pushpull_messages::variable::VariableSpec;

use crate::client::Gradients;

/// The gradients of all trained variables in one step of a worker: the mean over all examples of the step,
/// even if they come from several batches or are divided among several devices. The worker has not checked
/// or clipped them yet.
#[derive(Debug)]
pub struct StepGradients<'a> {
    local_step: LocalStep,
    global_step: GlobalStep,
    variables: &'a [VariableSpec],
    gradients: &'a mut Gradients,
}

/// The gradient of one variable.
#[derive(Debug)]
pub struct GradientMut<'a> {
    /// The variable's name.
    pub name: &'a str,
    /// The variable's shape.
    pub shape: &'a Shape,
    /// The elements, row-major.
    pub values: &'a mut [f32],
}

impl<'a> StepGradients<'a> {
    pub(crate) fn new(
        local_step: LocalStep,
        global_step: GlobalStep,
        variables: &'a [VariableSpec],
        gradients: &'a mut Gradients,
    ) -> Self {
        Self { local_step, global_step, variables, gradients }
    }

    /// Returns the number of steps that this worker has taken before this step.
    pub const fn local_step(&self) -> LocalStep {
        self.local_step
    }

    /// Returns the greatest version among the values from which the gradients were computed.
    pub const fn global_step(&self) -> GlobalStep {
        self.global_step
    }

    /// Returns the gradient of the variable called `name`; `None` if there is no such variable, or if it is
    /// not trained.
    pub fn get_mut(&mut self, name: &str) -> Option<GradientMut<'_>> {
        let position = self.variables.iter().position(|known| known.trainable && known.name == name)?;
        Some(self.at(position))
    }

    /// Calls a function with the gradient of each trained variable, in the order of the graph's variables.
    pub fn for_each(&mut self, mut change: impl FnMut(GradientMut<'_>)) {
        for position in 0..self.variables.len() {
            if self.variables[position].trainable {
                change(self.at(position));
            }
        }
    }

    fn at(&mut self, position: usize) -> GradientMut<'_> {
        let VariableSpec { name, shape, .. } = &self.variables[position];
        GradientMut { name, shape, values: self.gradients.variable_mut(VariableId(position as u32)) }
    }
}
