//! The interface to the storage of variables, which belongs to another room. A server gets its storage from
//! the program that starts it.

use std::sync::Arc;

use pushpull_messages::graph::VariableUpdate;
use pushpull_messages::message::ContainerDescription;
use pushpull_messages::optimizer::OptimizerSpec;
use pushpull_messages::tensor::Tensor;
use pushpull_messages::variable::VariableSpec;

/// The reason why a variable cannot be read or changed: one line for the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct VariableError(pub String);

/// A variable as a graph declares it, and whom it belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Declared<'a> {
    /// The name of the container.
    pub container: &'a str,
    /// The variable.
    pub variable: &'a VariableSpec,
    /// The number of the client whose quota the variable counts against if it is created.
    pub client: u64,
    /// Whether the variable is created if it does not exist. Otherwise, this is an error.
    pub may_create: bool,
}

/// A storage of variables in named containers. A variable is created with its initial value when it is first
/// used, and stays until its container is reset or the server ends. Each change is atomic: a reader sees a
/// value from before it or from after it.
pub trait Variables: Send + Sync + 'static {
    /// Returns the value of a variable.
    ///
    /// # Errors
    /// If the variable has another shape or type, does not fit within a limit, or must exist but does not.
    fn read(&self, declared: Declared<'_>) -> Result<Arc<Tensor>, VariableError>;

    /// Sets a variable, or adds to it or subtracts from it, and returns the new value. The new value has the
    /// variable's shape and type.
    ///
    /// # Errors
    /// The same as those of [`read`](Self::read).
    fn update(
        &self,
        declared: Declared<'_>,
        update: VariableUpdate,
        value: &Arc<Tensor>,
    ) -> Result<Arc<Tensor>, VariableError>;

    /// Changes a variable of floats by one step of an optimizer. The slots are kept beside the variable; they
    /// begin anew if the optimizer is another than that of the step before.
    ///
    /// # Errors
    /// Those of [`read`](Self::read), and if the gradient is not finite.
    fn apply(
        &self,
        declared: Declared<'_>,
        optimizer: &OptimizerSpec,
        gradient: &[f32],
    ) -> Result<(), VariableError>;

    /// Sets a variable to its initial value and removes its slots.
    ///
    /// # Errors
    /// The same as those of [`read`](Self::read).
    fn initialize(&self, declared: Declared<'_>) -> Result<(), VariableError>;

    /// Removes the variables of these containers, or all variables if the list is empty. Returns the number
    /// of variables removed.
    fn reset(&self, containers: &[String]) -> u64;

    /// Lists the containers and their variables, up to the limits of the message.
    fn describe(&self) -> Vec<ContainerDescription>;

    /// Returns the bytes that all variables and slots take, and the limit.
    fn bytes(&self) -> (u64, u64);
}
