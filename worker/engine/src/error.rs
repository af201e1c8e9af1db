//! The errors of compiling a graph and of running a step. Each error names the node that it is about. This
//! module must not depend on the contents of a batch.

use pushpull_kernels::cpu::{BadGeometry, BadShapes, IdOutOfRange, LabelOutOfRange};
use pushpull_messages::graph::GraphError;
use pushpull_messages::tensor::TensorSpec;

use super::arena::ARENA_ELEMENTS_MAX;
use super::columns::Lost;

/// The reason why a graph cannot be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The graph is not valid.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The graph cannot be trained, because one of its operations has no gradient with respect to an input.
    #[error("the loss depends on a variable through {node}, which has no gradient with respect to {input}")]
    NoGradient {
        /// The name of the node.
        node: String,
        /// The name of the input that has no gradient.
        input: &'static str,
    },
    /// The graph has an input for which the data have no column.
    #[error("input '{name}' asks for {example} in each example, but the data have the columns {columns}")]
    NoColumn {
        /// The name of the input node.
        name: String,
        /// The tensor that the node expects in each example.
        example: TensorSpec,
        /// The columns that the data have.
        columns: String,
    },
    /// The kernels cannot apply a window to images of this size.
    #[error("{node}: {error}")]
    Geometry {
        /// The name of the node.
        node: String,
        /// The reason that the kernels report.
        error: BadGeometry,
    },
    /// The kernels cannot broadcast these shapes.
    #[error("{node}: {error}")]
    Broadcast {
        /// The name of the node.
        node: String,
        /// The reason that the kernels report.
        error: BadShapes,
    },
    /// A step would need more working memory than the arena may have.
    #[error(
        "{what} {examples} examples at a time needs {elements} floats of working memory, but at most \
         {ARENA_ELEMENTS_MAX} are allowed: use smaller batches; the largest output is that of {node}"
    )]
    TooLarge {
        /// The text `training on` or `evaluating`.
        what: &'static str,
        /// The number of examples in a batch.
        examples: usize,
        /// The working memory that would be needed, in floats.
        elements: usize,
        /// The name of the node with the largest output.
        node: String,
    },
    /// A part of a graph would need more working memory than the arena may have.
    #[error(
        "part {part} of the graph needs {elements} floats of working memory, but at most {ARENA_ELEMENTS_MAX} are \
         allowed: move operations to other devices, or use fewer examples; the largest output is that of {node}"
    )]
    PartTooLarge {
        /// The number of the part.
        part: u32,
        /// The working memory that would be needed, in floats.
        elements: usize,
        /// The name of the node with the largest output.
        node: String,
    },
    /// A gradient is requested of a tensor that is not one number.
    #[error("{node} is {tensor}, but only the gradients of a single f32 can be computed: reduce it first")]
    NotOneNumber {
        /// The name of the node.
        node: String,
        /// The tensor that the node computes.
        tensor: TensorSpec,
    },
    /// A gradient is requested with respect to a node that is computed, or not of floats.
    #[error(
        "a gradient with respect to {node}, which is {tensor}, is requested: only variables and other external \
         nodes of f32 have gradients"
    )]
    NotDifferentiable {
        /// The name of the node.
        node: String,
        /// The tensor that the node computes.
        tensor: TensorSpec,
    },
    /// A gradient is requested of a value that depends on another gradient.
    #[error(
        "{node} depends on a gradient that is differentiated again: second derivatives are not supported"
    )]
    SecondDerivative {
        /// The name of the node whose gradient is requested.
        node: String,
    },
    /// A run has the gradients of too many losses.
    #[error("the run has gradients of more than {max} losses: compute some of them in another run")]
    TooManyLosses {
        /// The maximum number of losses.
        max: usize,
    },
    /// A graph and its gradients have too many kernels.
    #[error(
        "the graph and its gradients have more than {max} kernels: compute the gradients of fewer losses in one run"
    )]
    TooManyKernels {
        /// The maximum number of kernels.
        max: usize,
    },
}

/// The error for a batch that does not fit the model, or for an input that is lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{node}: {fault}")]
pub struct StepError {
    /// The name of the node that found the fault.
    pub node: String,
    /// What is wrong.
    pub fault: StepFault,
}

/// The way in which a batch does not fit a model, or the loss of an input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepFault {
    /// A label is not one of the classes.
    #[error(transparent)]
    Label(#[from] LabelOutOfRange),
    /// An id is not a row of the embedding table.
    #[error(transparent)]
    Id(#[from] IdOutOfRange),
    /// A value that another part computes will never arrive.
    #[error(transparent)]
    Lost(#[from] Lost),
}
