//! The faults of a graph, each with the name of its node. Does not know how they are found.

use super::limits::{RANK_MAX, TENSOR_ELEMENTS_MAX};
use super::op::Arity;
use crate::id::{NodeId, VariableId};
use crate::tensor::{Shape, TensorSpec};
use crate::variable::{VARIABLE_NAME_BYTES_MAX, VariableError};

/// A fault in a graph; the error names the node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// The graph has too many nodes, inputs, variables or metrics.
    #[error("the graph has {count} {what}, expected at most {max}")]
    TooMany {
        /// Nodes, inputs, variables or metrics.
        what: &'static str,
        /// The largest count.
        max: usize,
        /// The count found.
        count: usize,
    },
    /// A name is empty, too long, or has control characters.
    #[error(
        "{what} {position} has a name that is empty, longer than {VARIABLE_NAME_BYTES_MAX} bytes, or has control characters"
    )]
    Name {
        /// Node, metric, variable or graph.
        what: &'static str,
        /// The position in its list.
        position: usize,
    },
    /// Two nodes, variables or metrics have one name.
    #[error("{what} '{name}' is defined twice, expected every name once")]
    DuplicateName {
        /// Node, variable or metric.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A variable is invalid by itself.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// Two layers have one name.
    #[error(
        "layer '{layer}' is defined twice: give each layer a name of its own, or use the same layer again to share its variables"
    )]
    DuplicateLayer {
        /// The layer, with its scopes.
        layer: String,
    },
    /// A second use of a layer does not fit its variables.
    #[error(
        "layer '{layer}' is used again where variable '{variable}' would have shape {got}, expected {expected} as in its first use"
    )]
    SharedShape {
        /// The layer, with its scopes.
        layer: String,
        /// The variable, with its scopes.
        variable: String,
        /// The shape in the first use.
        expected: Shape,
        /// The shape that this use needs.
        got: Shape,
    },
    /// A layer cannot take the tensors to which it was applied.
    #[error("layer '{layer}' expects {expected}, got {got}")]
    Layer {
        /// The layer, with its scopes.
        layer: String,
        /// The tensors that fit.
        expected: String,
        /// The tensors found, for a batch of 2.
        got: String,
    },
    /// No node has the name.
    #[error("no node is called '{0}'")]
    UnknownName(String),
    /// A node refers to itself or to a later one: a cycle, or a list in the wrong order.
    #[error(
        "{node} takes node {input} as an input, which does not come before it, expected inputs first and no cycles"
    )]
    NotBefore {
        /// The node.
        node: String,
        /// The node to which it refers.
        input: NodeId,
    },
    /// A node has more or fewer inputs than its operation takes.
    #[error("{node} has {got} inputs, expected {expected}")]
    Arity {
        /// The node.
        node: String,
        /// The number that the operation takes.
        expected: Arity,
        /// The number found.
        got: usize,
    },
    /// A node names an unknown variable.
    #[error("{node} names variable {variable}, but the graph has {variables}")]
    UnknownVariable {
        /// The node.
        node: String,
        /// The unknown variable.
        variable: VariableId,
        /// The number of variables in the graph.
        variables: usize,
    },
    /// A node's inputs have the wrong shape or type.
    #[error("{node} expects {expected}, got {got}")]
    Shape {
        /// The node.
        node: String,
        /// The inputs that fit.
        expected: String,
        /// The inputs found.
        got: String,
    },
    /// A node's output is too large.
    #[error(
        "{node} would return {tensor}, expected at most {TENSOR_ELEMENTS_MAX} elements and {RANK_MAX} axes"
    )]
    TooLarge {
        /// The node.
        node: String,
        /// Its output.
        tensor: TensorSpec,
    },
    /// The loss or a metric is not a scalar of the graph.
    #[error("{what} must be a node that returns an f32 scalar: {got}")]
    NotScalar {
        /// The loss, or the metric's name.
        what: String,
        /// The output found.
        got: String,
    },
    /// No node reads a variable, so that it would have no gradient.
    #[error("variable '{0}' is not used by any node: use it or remove it")]
    UnusedVariable(String),
    /// A number of an operation is out of range.
    #[error("{node} has the {what} {got}, expected {expected}")]
    Number {
        /// The node.
        node: String,
        /// The number's name.
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
        /// The value, as text because NaN does not equal itself.
        value: String,
    },
}
