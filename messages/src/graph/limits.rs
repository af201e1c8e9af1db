//! The limits on the size of a graph.

pub use crate::tensor::RANK_MAX;

/// The maximum number of nodes in a graph, and the maximum number of variables.
pub const NODES_MAX: usize = 1 << 16;
/// The maximum total number of inputs of all nodes in a graph.
pub const INPUTS_MAX: usize = 1 << 18;
/// The maximum number of metrics in a graph.
pub const METRICS_MAX: usize = 1024;
/// The maximum number of outputs of a graph.
pub const OUTPUTS_MAX: usize = 64;
/// The maximum number of summaries that a graph declares.
pub const GRAPH_SUMMARIES_MAX: usize = 256;
/// The maximum size, in bytes, of the tensor of one summary, for one batch.
pub const SUMMARY_TENSOR_BYTES_MAX: u64 = 64 << 20;
/// The maximum size, in bytes, of the tensors of all summaries together, for one batch.
pub const SUMMARY_TENSORS_BYTES_MAX: u64 = 256 << 20;
/// The maximum number of bytes in the name of a summary that a graph declares. The limit leaves room for the
/// name of the worker, which the chief appends.
pub const SUMMARY_NAME_BYTES_MAX: usize = crate::summary::TAG_BYTES_MAX - 32;
/// The maximum number of elements in one node's output.
pub const TENSOR_ELEMENTS_MAX: usize = 1 << 32;
/// The maximum number of bytes in the constant tensors of a session's graph together. Larger tensors are fed.
pub const CONSTANT_BYTES_MAX: usize = 64 << 20;
