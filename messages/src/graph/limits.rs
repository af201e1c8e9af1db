//! The bounds of a graph. Knows no graph.

/// The most nodes, and the most variables, in a graph.
pub const NODES_MAX: usize = 1 << 16;
/// The most inputs of all nodes of a graph together.
pub const INPUTS_MAX: usize = 1 << 18;
/// The most metrics in a graph.
pub const METRICS_MAX: usize = 1024;
/// The most elements in one node's output.
pub const TENSOR_ELEMENTS_MAX: usize = 1 << 32;
/// The most axes of a tensor.
pub const RANK_MAX: usize = 8;
