//! Why a graph cannot be made into a program, and why a program cannot finish a step. Each names the node.

use pushpull_kernels::cpu::{BadGeometry, BadShapes, IdOutOfRange, LabelOutOfRange};
use pushpull_messages::graph::GraphError;
use pushpull_messages::tensor::TensorSpec;

use super::program::ARENA_ELEMENTS_MAX;

/// Why a graph cannot be made into a program.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// It is no valid graph.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// It cannot be trained.
    #[error("{node} lies between a variable and the loss, and has no gradient by {input}")]
    NoGradient {
        /// The node.
        node: String,
        /// Which of its inputs.
        input: &'static str,
    },
    /// It asks for something that the data do not have.
    #[error("input '{name}' asks for {example} in each example, and the data have the columns {columns}")]
    NoColumn {
        /// The node's name.
        name: String,
        /// What it asks for.
        example: TensorSpec,
        /// What there is.
        columns: String,
    },
    /// A window does not fit its images, for the kernels.
    #[error("{node}: {error}")]
    Geometry {
        /// The node.
        node: String,
        /// What does not fit.
        error: BadGeometry,
    },
    /// Shapes do not broadcast, for the kernels.
    #[error("{node}: {error}")]
    Broadcast {
        /// The node.
        node: String,
        /// What does not fit.
        error: BadShapes,
    },
    /// It needs too much memory.
    #[error(
        "{what} {examples} examples at a time would need {elements} floats of working memory, and may need at most {ARENA_ELEMENTS_MAX}; the largest output is that of {node}"
    )]
    TooLarge {
        /// Training or evaluating.
        what: &'static str,
        /// In a batch.
        examples: usize,
        /// Of memory.
        elements: usize,
        /// Which needs the most.
        node: String,
    },
}

/// The batch does not fit the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{node}: {fault}")]
pub struct StepError {
    /// The node that noticed.
    pub node: String,
    /// What does not fit.
    pub fault: StepFault,
}

/// What in a batch does not fit a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepFault {
    /// A label is none of the classes.
    #[error(transparent)]
    Label(#[from] LabelOutOfRange),
    /// An id is none of the table's rows.
    #[error(transparent)]
    Id(#[from] IdOutOfRange),
}
