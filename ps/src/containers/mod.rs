//! The variables of sessions, in named containers. Unlike a shard's variables, they are of any type, are
//! created when they are first used, and belong to no job. This module must not depend on graphs or
//! connections.
//!
//! Required properties: (A) each change is atomic, and no change is lost; (B) a value that was read never
//! changes; (C) the bytes that are counted are those of all variables and slots, and never exceed a limit.

mod arithmetic;
mod error;
mod memory;
#[cfg(test)]
mod tests;
mod variable;

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use pushpull_messages::graph::VariableUpdate;
use pushpull_messages::message::{ContainerDescription, VARIABLES_LISTED_MAX, VariableDescription};
use pushpull_messages::optimizer::OptimizerSpec;
use pushpull_messages::tensor::{Tensor, TensorSpec};
use pushpull_messages::variable::VariableSpec;

pub use error::ContainerError;
use memory::Memory;
use variable::Variable;

/// The maximum number of variables in all containers of a task.
const VARIABLES_MAX: usize = 1 << 20;

/// The limits on the memory of the containers of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerLimits {
    /// The bytes that all variables and slots may take.
    pub bytes_max: u64,
    /// The bytes that the variables and slots may take that one client has created.
    pub client_bytes_max: u64,
}

/// A variable as a client's graph declares it.
#[derive(Clone, Copy, Debug)]
pub struct ClientVariable<'a> {
    /// The name of the container.
    pub container: &'a str,
    /// The variable.
    pub spec: &'a VariableSpec,
    /// The number of the client, which owns the variable if it creates it.
    pub client: u64,
    /// Whether the variable is created if it does not exist. Otherwise, this is an error.
    pub may_create: bool,
}

/// The containers of a task. A variable stays until its container is reset or the containers are dropped.
#[derive(Debug)]
pub struct Containers {
    memory: Arc<Memory>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    containers: BTreeMap<String, BTreeMap<String, Arc<Variable>>>,
    /// The number of variables in all containers.
    variables: usize,
}

impl Containers {
    /// Makes containers without variables.
    pub fn new(limits: ContainerLimits) -> Self {
        Self { memory: Arc::new(Memory::new(limits)), table: Mutex::default() }
    }

    /// Returns the value of a variable. Creates the variable with its initial value if it does not exist.
    ///
    /// # Errors
    /// If the variable exists with another shape or type, does not fit within a limit, or must exist but does
    /// not.
    pub fn read(&self, variable: ClientVariable<'_>) -> Result<Arc<Tensor>, ContainerError> {
        Ok(self.variable(variable)?.read())
    }

    /// Sets a variable, or adds to it or subtracts from it, and returns the new value. `value` has the
    /// variable's shape and type.
    ///
    /// # Errors
    /// The same as those of [`read`](Self::read).
    pub fn update(
        &self,
        variable: ClientVariable<'_>,
        update: VariableUpdate,
        value: &Arc<Tensor>,
    ) -> Result<Arc<Tensor>, ContainerError> {
        self.variable(variable)?.update(variable.spec, update, value)
    }

    /// Changes a variable of floats by one step of an optimizer, whose slots are kept beside it. If the
    /// optimizer differs from that of the step before, its slots begin anew.
    ///
    /// # Errors
    /// Those of [`read`](Self::read), and if the gradient has NaN or infinite elements. The variable is then
    /// unchanged.
    pub fn apply(
        &self,
        variable: ClientVariable<'_>,
        optimizer: &OptimizerSpec,
        gradient: &[f32],
    ) -> Result<(), ContainerError> {
        self.variable(variable)?.apply(variable.spec, optimizer, gradient)
    }

    /// Gives a variable its initial value, and removes its slots.
    ///
    /// # Errors
    /// The same as those of [`read`](Self::read).
    pub fn initialize(&self, variable: ClientVariable<'_>) -> Result<(), ContainerError> {
        self.variable(variable)?.initialize(variable.spec)
    }

    /// Removes the variables of these containers, or all variables if the list is empty. Returns the number
    /// of variables removed.
    pub fn reset(&self, containers: &[String]) -> u64 {
        let mut table = self.table.lock();
        let removed: Vec<_> = match containers {
            [] => std::mem::take(&mut table.containers).into_values().collect(),
            names => names.iter().filter_map(|name| table.containers.remove(name)).collect(),
        };
        let count: usize = removed.iter().map(BTreeMap::len).sum();
        table.variables -= count;
        // Freeing many variables takes a while; the others need not wait.
        drop(table);
        count as u64
    }

    /// Lists the containers and their variables. Lists at most [`VARIABLES_LISTED_MAX`] variables in all.
    pub fn describe(&self) -> Vec<ContainerDescription> {
        let table = self.table.lock();
        let mut left = VARIABLES_LISTED_MAX;
        let container = |(name, variables): (&String, &BTreeMap<String, Arc<Variable>>)| {
            let listed: Vec<VariableDescription> = variables
                .iter()
                .take(left)
                .map(|(name, variable)| {
                    let (tensor, changes) = variable.describe();
                    VariableDescription { name: name.clone(), tensor, changes }
                })
                .collect();
            left -= listed.len();
            let left_out = (variables.len() - listed.len()) as u64;
            ContainerDescription { name: name.clone(), variables: listed, left_out }
        };
        table.containers.iter().take(VARIABLES_LISTED_MAX).map(container).collect()
    }

    /// Returns the bytes that all variables and slots take, and their limit.
    pub fn bytes(&self) -> (u64, u64) {
        self.memory.bytes()
    }

    /// Returns a variable. Creates it if it does not exist and the client may do so.
    fn variable(&self, variable: ClientVariable<'_>) -> Result<Arc<Variable>, ContainerError> {
        let ClientVariable { container, spec, client, may_create } = variable;
        let expected = TensorSpec::new(spec.dtype, spec.shape.clone());
        let mut table = self.table.lock();
        if let Some(held) = table.containers.get(container).and_then(|own| own.get(&spec.name)) {
            if held.tensor != expected {
                let (name, container, held) = (spec.name.clone(), container.to_owned(), held.tensor.clone());
                return Err(ContainerError::Mismatch { name, container, held, expected });
            }
            return Ok(Arc::clone(held));
        }
        if !may_create {
            let (name, container) = (spec.name.clone(), container.to_owned());
            return Err(ContainerError::Missing { name, container });
        }
        if table.variables >= VARIABLES_MAX {
            return Err(ContainerError::TooMany { name: spec.name.clone(), max: VARIABLES_MAX });
        }
        let made = Arc::new(Variable::new(spec, expected, client, &self.memory)?);
        table.variables += 1;
        let own = table.containers.entry(container.to_owned()).or_default();
        own.insert(spec.name.clone(), Arc::clone(&made));
        Ok(made)
    }
}
