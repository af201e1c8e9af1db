//! The reasons why a graph cannot be compiled, and why a program cannot finish a step. Each names the node.
//! Knows no batch.

use pushpull_kernels::cpu::{BadGeometry, BadShapes, IdOutOfRange, LabelOutOfRange};
use pushpull_messages::graph::GraphError;
use pushpull_messages::tensor::TensorSpec;

use super::arena::ARENA_ELEMENTS_MAX;

/// The reason why a graph cannot be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The graph is not valid.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The graph cannot be trained.
    #[error("{node} lies between a variable and the loss, but has no gradient by {input}")]
    NoGradient {
        /// The node.
        node: String,
        /// The input without a gradient.
        input: &'static str,
    },
    /// The graph has an input that the data lack.
    #[error("input '{name}' asks for {example} in each example, but the data have the columns {columns}")]
    NoColumn {
        /// The node's name.
        name: String,
        /// The tensor that it expects in each example.
        example: TensorSpec,
        /// The columns of the data.
        columns: String,
    },
    /// The kernels cannot compute a window on images of this size.
    #[error("{node}: {error}")]
    Geometry {
        /// The node.
        node: String,
        /// The kernel's reason.
        error: BadGeometry,
    },
    /// The kernels cannot broadcast these shapes.
    #[error("{node}: {error}")]
    Broadcast {
        /// The node.
        node: String,
        /// The kernel's reason.
        error: BadShapes,
    },
    /// A step needs too much memory.
    #[error(
        "{what} {examples} examples at a time needs {elements} floats of working memory, but at most \
         {ARENA_ELEMENTS_MAX} are allowed: use smaller batches; the largest output is that of {node}"
    )]
    TooLarge {
        /// The words `training on` or `evaluating`.
        what: &'static str,
        /// The examples in a batch.
        examples: usize,
        /// The working memory, in floats.
        elements: usize,
        /// The node with the largest output.
        node: String,
    },
}

/// The error for a batch that does not fit the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{node}: {fault}")]
pub struct StepError {
    /// The node that found it.
    pub node: String,
    /// The reason.
    pub fault: StepFault,
}

/// The reason why a batch does not fit a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepFault {
    /// A label is none of the classes.
    #[error(transparent)]
    Label(#[from] LabelOutOfRange),
    /// An id is none of the table's rows.
    #[error(transparent)]
    Id(#[from] IdOutOfRange),
}
