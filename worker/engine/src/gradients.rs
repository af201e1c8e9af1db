//! The memory into which the executor writes gradients. This module must not depend on the owner of that
//! memory or on the use of the gradients.

use pushpull_messages::id::VariableId;

/// A receiver of gradients: it provides memory for each variable's gradient, and is notified when a gradient
/// is complete.
pub trait GradientSink {
    /// Returns whether [`variable_mut`](Self::variable_mut) may be called. Only a run that can pause asks: it
    /// waits before the instruction that writes the gradient.
    fn is_ready(&self, variable: VariableId) -> bool {
        let _ = variable;
        true
    }

    /// Returns the memory for one variable's gradient, in row-major order. The executor writes the whole
    /// gradient, and may read it back until it has called [`complete`](Self::complete).
    ///
    /// # Panics
    /// May panic if the graph has no such variable, or if the gradient is already complete.
    fn variable_mut(&mut self, variable: VariableId) -> &mut [f32];

    /// Receives the notice that one variable's gradient is complete. After this call, the executor does not
    /// access that gradient again in this step. The executor makes one call per step for each variable, in
    /// the program's [`gradient_order`](crate::Program::gradient_order).
    fn complete(&mut self, variable: VariableId);
}

/// Provides one vector for each variable, in the graph's order, and ignores the notices.
impl GradientSink for Vec<Vec<f32>> {
    fn variable_mut(&mut self, variable: VariableId) -> &mut [f32] {
        &mut self[variable.index()]
    }

    fn complete(&mut self, _: VariableId) {}
}
