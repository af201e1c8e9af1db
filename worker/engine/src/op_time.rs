//! The time that an operation of a step took. This module must not depend on what the operation computes.

use std::time::Instant;

use pushpull_messages::id::NodeId;

/// The time that an operation of a step took.
#[derive(Clone, Debug)]
pub struct OpTime {
    /// The node of the graph that the operation belongs to. If several nodes were merged into one operation,
    /// this is the last of them.
    pub node: NodeId,
    /// The kind of the operation, such as `Product` or `Conv2dKernelGrad`.
    pub kind: String,
    /// Whether the operation is a part of the backward pass.
    pub backward: bool,
    /// When the operation began.
    pub began: Instant,
    /// When the operation ended.
    pub ended: Instant,
}
