//! A value that crosses from one part to another. This module must not depend on programs.

use pushpull_messages::id::NodeId;
use pushpull_messages::tensor::TensorSpec;

/// A value that crosses from one part to another, or from the caller's computation beside a part to a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The number of the edge, unique within the cut. All tasks that cut the same graph in the same way
    /// number the edges equally.
    pub key: u64,
    /// The part that sends the value.
    pub from: u32,
    /// The part that receives the value; it may be `from`.
    pub to: u32,
    /// The type and the number of elements of the value. Its shape may be another one of the same size.
    pub spec: TensorSpec,
    /// The given node whose value crosses, which the caller sends. `None` if the program of `from` sends it.
    pub given: Option<NodeId>,
}
