//! The graph as data: what a model computes, checked before anything runs.
//!
//! It travels from the chief to workers that know no model. Running it is the worker's matter.

mod builder;
mod geometry;
mod infer;
mod op;
mod spec;
#[cfg(test)]
mod tests;

pub use builder::GraphBuilder;
pub use geometry::{Padding, Stride, Window};
pub use op::Op;
pub use spec::{GraphError, GraphSpec, METRICS_MAX, MetricSpec, NODES_MAX, NodeSpec, TENSOR_ELEMENTS_MAX};
