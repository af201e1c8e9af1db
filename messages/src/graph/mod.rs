//! The graph as data. It describes what a model computes, and is checked before anything runs.
//!
//! The chief sends the graph to the workers, so workers need no code for particular models. The workers
//! decide how to run a graph.

mod arity;
mod builder;
mod device_scopes;
mod element;
mod error;
mod geometry;
mod infer;
mod limits;
mod op;
mod session;
mod session_op;
mod session_verbs;
mod spec;
mod stages;
#[cfg(test)]
mod tests;
mod verbs;

pub use arity::Arity;
pub use builder::{GraphBuilder, LayerId};
pub use element::{BinaryOp, ReductionOp, UnaryOp};
pub use error::GraphError;
pub use geometry::{Padding, Stride, Window};
pub use limits::{
    CONSTANT_BYTES_MAX, GRAPH_SUMMARIES_MAX, INPUTS_MAX, METRICS_MAX, NODES_MAX, RANK_MAX,
    SUMMARY_NAME_BYTES_MAX, SUMMARY_TENSOR_BYTES_MAX, SUMMARY_TENSORS_BYTES_MAX, TENSOR_ELEMENTS_MAX,
};
pub use op::Op;
pub use session_op::{Comparison, Logic, SessionOp, VariableUpdate};
pub use spec::{GraphSpec, GraphSummaryKind, GraphSummarySpec, MetricKind, MetricSpec, NodeSpec, OutputSpec};
pub use stages::Stages;
