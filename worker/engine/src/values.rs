//! Where the executor reads the values of variables. Knows neither how they came here nor how they are
//! stored.

use pushpull_messages::id::VariableId;

/// A source of every variable's value.
pub trait ValueSource {
    /// Returns one variable's value, row-major.
    ///
    /// # Panics
    /// May panic if the graph has no such variable.
    fn variable(&self, variable: VariableId) -> &[f32];
}

/// One vector for each variable, in the graph's order.
impl ValueSource for Vec<Vec<f32>> {
    fn variable(&self, variable: VariableId) -> &[f32] {
        &self[variable.index()]
    }
}
