//! The place where the executor writes gradients. It must know neither who owns that memory nor what is done
//! with the gradients.

use pushpull_messages::id::VariableId;

/// A receiver of gradients: it provides memory for each variable's gradient, and is notified when a gradient
/// is complete.
pub trait GradientSink {
    /// Returns the memory for one variable's gradient, in row-major order. The executor writes all of it, and
    /// may read what it has written until it reports the gradient as complete.
    ///
    /// # Panics
    /// May panic if the graph has no such variable, or if the gradient is already complete.
    fn variable_mut(&mut self, variable: VariableId) -> &mut [f32];

    /// Receives the notice that one variable's gradient is complete: the executor neither reads nor writes it
    /// again in this step. The executor calls this once per step for each variable, in the program's
    /// [`gradient_order`](crate::Program::gradient_order).
    fn complete(&mut self, variable: VariableId);
}

/// Provides one vector for each variable, in the graph's order, and ignores the notices.
impl GradientSink for Vec<Vec<f32>> {
    fn variable_mut(&mut self, variable: VariableId) -> &mut [f32] {
        &mut self[variable.index()]
    }

    fn complete(&mut self, _: VariableId) {}
}
