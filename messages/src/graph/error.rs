//! The errors of a graph. Each names the node, the layer or the variable that is at fault.

use super::arity::Arity;
use super::limits::{
    CONSTANT_BYTES_MAX, RANK_MAX, SUMMARY_NAME_BYTES_MAX, SUMMARY_TENSOR_BYTES_MAX,
    SUMMARY_TENSORS_BYTES_MAX, TENSOR_ELEMENTS_MAX,
};
use crate::device::{OpDeviceError, OpDeviceSpec};
use crate::id::{NodeId, VariableId};
use crate::tensor::{Shape, TensorSpec};
use crate::variable::{VARIABLE_NAME_BYTES_MAX, VariableError};

/// An error in a graph. The message names the node, the layer or the variable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// The graph has too many nodes, inputs, variables, metrics, outputs or summaries.
    #[error("the graph has {count} {what}, expected at most {max}")]
    TooMany {
        /// The kind of item that the graph has too many of, such as nodes or outputs.
        what: &'static str,
        /// The largest number allowed.
        max: usize,
        /// The number of these items in the graph.
        count: usize,
    },
    /// A name is empty, too long, or has control characters.
    #[error(
        "{what} {position} has an invalid name, expected 1 to {VARIABLE_NAME_BYTES_MAX} bytes without control characters"
    )]
    Name {
        /// The kind of item that has the name: graph, variable, node, metric, output or summary.
        what: &'static str,
        /// The item's position in the list of all items of its kind; 0 for the graph.
        position: usize,
    },
    /// Two items of the same kind have the same name, such as two nodes.
    #[error("{what} '{name}' is defined twice, expected each name once: rename one of the two")]
    DuplicateName {
        /// The kind of items that have the name: node, variable, metric, output or summary.
        what: &'static str,
        /// The name that occurs twice.
        name: String,
    },
    /// The spec of a variable is invalid in itself, no matter how the graph uses the variable.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// The text of a device scope is invalid.
    #[error(transparent)]
    Device(#[from] OpDeviceError),
    /// The graph of a training job requests a device for an operation that is not a device of a worker.
    #[error(
        "{node} requests the device '{device}', but a training job runs operations only on workers: expected a device of a worker, such as '/job:worker/task:0/device:CPU:0' or '/device:GPU:1'"
    )]
    NotOnWorker {
        /// The node.
        node: String,
        /// The requested device.
        device: OpDeviceSpec,
    },
    /// Two different layers have the same name.
    #[error(
        "layer '{layer}' is defined twice: give each layer a name of its own, or use the same layer again to share its variables"
    )]
    DuplicateLayer {
        /// The full name of the layer, with its scopes.
        layer: String,
    },
    /// A variable of a layer would have a different shape in a later use of the layer than in the first use.
    #[error(
        "layer '{layer}' is used again, but variable '{variable}' would have shape {got} here, expected {expected} as in the first use"
    )]
    SharedShape {
        /// The full name of the layer, with its scopes.
        layer: String,
        /// The full name of the variable, with its scopes.
        variable: String,
        /// The shape of the variable in the first use.
        expected: Shape,
        /// The shape of the variable that the later use needs.
        got: Shape,
    },
    /// A layer cannot take the tensors to which it was applied.
    #[error("layer '{layer}' expects {expected}, got {got}")]
    Layer {
        /// The full name of the layer, with its scopes.
        layer: String,
        /// A description of the tensors to which the layer can be applied.
        expected: String,
        /// A description of the tensors found, with their shapes for a batch of 2 examples.
        got: String,
    },
    /// No node has this name.
    #[error("no node is called '{0}'")]
    UnknownName(String),
    /// A node takes itself or a later node as an input. The graph has a cycle, or its nodes are listed in
    /// the wrong order.
    #[error(
        "{node} takes node {input} as an input, but node {input} does not come before it: list every node after its inputs, without cycles"
    )]
    NotBefore {
        /// The node.
        node: String,
        /// The node that `node` takes as an input.
        input: NodeId,
    },
    /// A node has more or fewer inputs than its operation takes.
    #[error("{node} has {got} inputs, expected {expected}")]
    Arity {
        /// The node.
        node: String,
        /// The number of inputs that the operation takes.
        expected: Arity,
        /// The number of inputs found.
        got: usize,
    },
    /// A node refers to a variable that the graph does not have.
    #[error("{node} names variable {variable}, but the graph has {variables} variables, numbered from 0")]
    UnknownVariable {
        /// The node.
        node: String,
        /// The unknown variable.
        variable: VariableId,
        /// The number of variables in the graph.
        variables: usize,
    },
    /// The inputs of a node have the wrong shape or type.
    #[error("{node} expects {expected}, got {got}")]
    Shape {
        /// The node.
        node: String,
        /// A description of the inputs that the operation takes.
        expected: String,
        /// The inputs found.
        got: String,
    },
    /// The output of a node is too large.
    #[error(
        "{node} would return {tensor}, expected at most {TENSOR_ELEMENTS_MAX} elements and {RANK_MAX} axes"
    )]
    TooLarge {
        /// The node.
        node: String,
        /// The shape and type of the node's output.
        tensor: TensorSpec,
    },
    /// The loss, a metric or a scalar summary is not a node of the graph, or its node does not return an f32
    /// scalar.
    #[error("{what} must be a node that returns an f32 scalar: {got}")]
    NotScalar {
        /// The item at fault: the loss, or a metric or summary with its name.
        what: String,
        /// A description of the output found.
        got: String,
    },
    /// An output is not a node of the graph, or the node does not return one f32 row for each example.
    #[error(
        "output '{output}' must be a node that returns an f32 tensor whose first axis is the batch: {got}"
    )]
    NotOfExamples {
        /// The name of the output.
        output: String,
        /// A description of what the node returns.
        got: String,
    },
    /// The name of a summary is too long.
    #[error("the name of summary '{name}' has {} bytes, expected at most {SUMMARY_NAME_BYTES_MAX}", name.len())]
    SummaryName {
        /// The name.
        name: String,
    },
    /// The node of a histogram is not in the graph, or it does not return f32.
    #[error("the histogram '{summary}' must be of a node that returns f32: {got}")]
    NotFloats {
        /// The name of the summary.
        summary: String,
        /// A description of what the node returns.
        got: String,
    },
    /// The tensors of the summaries are too large for a worker to copy them in one step.
    #[error(
        "the summary '{summary}' reads {bytes} bytes for one batch, expected at most {SUMMARY_TENSOR_BYTES_MAX}, and at \
         most {SUMMARY_TENSORS_BYTES_MAX} for all summaries: plot a smaller tensor"
    )]
    LargeSummary {
        /// The name of the largest summary.
        summary: String,
        /// The size of this summary's tensor for one batch, in bytes.
        bytes: u64,
    },
    /// No node reads this variable, so it would have no gradient.
    #[error("variable '{0}' is not used by any node: use it or remove it")]
    UnusedVariable(String),
    /// A numeric setting of an operation, such as a stride, is out of range.
    #[error("{node} has the {what} {got}, expected {expected}")]
    Number {
        /// The node.
        node: String,
        /// The name of the setting.
        what: &'static str,
        /// The allowed values.
        expected: &'static str,
        /// The value found.
        got: String,
    },
    /// A constant is not finite.
    #[error("{node} has the value {value}, expected a finite number")]
    NotFinite {
        /// The node.
        node: String,
        /// The value, as text. If the value were stored as a float, an error about NaN would not equal
        /// itself.
        value: String,
    },
    /// A training job has an operation that only sessions run.
    #[error(
        "{node} is an operation of sessions: a training job cannot have it; remove it or run the graph in a session"
    )]
    OfSessions {
        /// The node.
        node: String,
    },
    /// The constant tensors of a session's graph are too large.
    #[error(
        "the constants of the graph have {bytes} bytes, expected at most {CONSTANT_BYTES_MAX}: feed large tensors instead"
    )]
    LargeConstants {
        /// The number of bytes in all constants together.
        bytes: usize,
    },
    /// A hyperparameter of an optimizer is out of range.
    #[error("{node} has an invalid optimizer: {error}")]
    Optimizer {
        /// The node.
        node: String,
        /// The error of the optimizer, as text. It contains a float, so an error about NaN would not equal
        /// itself.
        error: String,
    },
    /// A node that must read a variable, such as the target of an assignment, does something else.
    #[error(
        "{got} is not a variable, expected the node of a variable: pass what the builder returned for it"
    )]
    NotAVariable {
        /// A description of the node found.
        got: String,
    },
    /// A loss depends on no trained variable.
    #[error(
        "the loss {got} depends on no trained variable: no gradient passes through operations of sessions"
    )]
    NothingToTrain {
        /// A description of the node of the loss.
        got: String,
    },
}
