//! The kernels of a training step: those of the loss, of every variable's gradient, and of the updates of
//! moving averages. This module must not depend on memory or on the device that runs the kernels.

use pushpull_messages::graph::GraphSpec;
use pushpull_messages::id::VariableId;
use pushpull_messages::input::ColumnSpec;

use super::autodiff::differentiate;
use super::error::CompileError;
use super::ir::{Ir, Value};
use super::lower::{Lowered, Mode, lower};

/// The kernels of a training step.
pub(super) struct Training {
    pub ir: Ir,
    /// The value of every node of the graph.
    pub values: Vec<Value>,
    /// The gradient of each variable. That of a variable that batch normalisations move is what has to be
    /// subtracted from it. `None` if the gradient is zero, because the loss does not depend on the variable.
    pub gradients: Vec<Option<Value>>,
}

impl Training {
    /// Lowers and differentiates a graph for batches of `batch` examples with these columns.
    ///
    /// # Errors
    /// If the graph is not valid, or cannot be lowered or differentiated.
    pub fn lower(graph: &GraphSpec, batch: usize, columns: &[ColumnSpec]) -> Result<Self, CompileError> {
        graph.validate(batch)?;
        let Lowered { mut ir, values, updates } = lower(graph, batch, columns, Mode::Training)?;
        let mut gradients = differentiate(&mut ir, graph, values[graph.loss.index()])?;
        for (VariableId(variable), update) in updates {
            let so_far = &mut gradients[variable as usize];
            // Two normalisations may update the same variable.
            *so_far = Some(match *so_far {
                None => update,
                Some(before) => ir.add(before, update),
            });
        }
        Ok(Self { ir, values, gradients })
    }

    /// Returns the variables that have a gradient, with their gradients.
    pub fn computed(&self) -> impl Iterator<Item = (VariableId, Value)> + '_ {
        self.gradients().filter_map(|(variable, gradient)| Some((variable, gradient?)))
    }

    /// Returns the variables whose gradients are zero.
    pub fn unused(&self) -> impl Iterator<Item = VariableId> + '_ {
        self.gradients().filter_map(|(variable, gradient)| gradient.is_none().then_some(variable))
    }

    fn gradients(&self) -> impl Iterator<Item = (VariableId, Option<Value>)> + '_ {
        (0..).map(VariableId).zip(self.gradients.iter().copied())
    }
}
