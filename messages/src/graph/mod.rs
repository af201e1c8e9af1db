//! The graph as data: what a model computes, checked before anything runs.
//!
//! The chief sends it to workers, which know no model. Does not know how a graph is run.

mod builder;
mod element;
mod geometry;
mod infer;
mod op;
mod spec;
#[cfg(test)]
mod tests;
mod verbs;

pub use builder::{GraphBuilder, LayerId};
pub use element::{BinaryOp, ReductionOp, UnaryOp};
pub use geometry::{Padding, Stride, Window};

pub use op::{Arity, Op};
pub use spec::{
    GraphError, GraphSpec, INPUTS_MAX, METRICS_MAX, MetricKind, MetricSpec, NODES_MAX, NodeSpec, RANK_MAX,
    TENSOR_ELEMENTS_MAX,
};
