//! Where the executor writes gradients. Knows neither their memory nor what is done with them.

use pushpull_messages::id::VariableId;

/// Memory for every variable's gradient, which is told when each gradient is complete.
pub trait GradientSink {
    /// Returns the memory for one variable's gradient, row-major. The executor writes all of it, and may read
    /// what it has written until it reports the gradient as complete.
    ///
    /// # Panics
    /// May panic if the graph has no such variable, or after the gradient was complete.
    fn variable_mut(&mut self, variable: VariableId) -> &mut [f32];

    /// Takes note that the executor is done with one variable's gradient: it neither reads nor writes it
    /// again in this step. Is called once a step for each variable, in the program's
    /// [`gradient_order`](crate::Program::gradient_order).
    fn complete(&mut self, variable: VariableId);
}

/// One vector for each variable, in the graph's order; completion is ignored.
impl GradientSink for Vec<Vec<f32>> {
    fn variable_mut(&mut self, variable: VariableId) -> &mut [f32] {
        &mut self[variable.index()]
    }

    fn complete(&mut self, _: VariableId) {}
}
