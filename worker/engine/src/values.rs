//! The source from which the executor reads the values of variables. This module must not depend on the
//! origin or the storage of the values.

use pushpull_messages::id::VariableId;

/// A source of every variable's value.
pub trait ValueSource {
    /// Returns one variable's value, in row-major order.
    ///
    /// # Panics
    /// May panic if the graph has no such variable.
    fn variable(&self, variable: VariableId) -> &[f32];
}

/// Provides one vector for each variable, in the graph's order.
impl ValueSource for Vec<Vec<f32>> {
    fn variable(&self, variable: VariableId) -> &[f32] {
        &self[variable.index()]
    }
}
