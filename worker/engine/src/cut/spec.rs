//! The request to cut a graph: the nodes that a run needs, where they run, and what becomes of their values.
//! This module must not depend on kernels.

use pushpull_messages::graph::{GraphSpec, Op};
use pushpull_messages::id::NodeId;
use pushpull_messages::tensor::TensorSpec;

/// How the nodes of a graph are spread over parts.
///
/// All node lists have the length of the graph. If a node is needed and not external, its inputs must be
/// needed, and its tensor must be the one that inference returns for them.
#[derive(Clone, Copy, Debug)]
pub struct Cut<'a> {
    /// The graph.
    pub graph: &'a GraphSpec,
    /// The tensor of each node in this run, of f32 or i32; `None` if the node is not needed. A node of
    /// another type may only be an external node that no node of this crate reads.
    pub tensors: &'a [Option<TensorSpec>],
    /// The part that each needed node runs in, below `parts_count`.
    pub parts: &'a [Option<u32>],
    /// The number of parts.
    pub parts_count: u32,
    /// True for the nodes whose values the caller computes beside the programs. They stop gradients. Inputs
    /// and variables are external anyway. Unless they are given, all variable nodes of the same variable
    /// share the value of the first one that is needed, so that a run reads a variable once.
    pub given: &'a [bool],
    /// The values that the caller wants: a node, and the part to which its value is delivered.
    pub wanted: &'a [(NodeId, u32)],
    /// The nodes that are gradients, unless they are given. Their operations and inputs are ignored.
    pub gradients: &'a [CutGradient],
    /// Whether normalisations use the batch's statistics, and dropout drops elements.
    pub training: bool,
}

/// A node whose value is a gradient. Its tensor is that of the node `of`.
///
/// The gradient with respect to a variable that is not trained, but moved by a batch normalisation in
/// training, is what has to be subtracted from the variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutGradient {
    /// The node that is the gradient. It comes after `loss`.
    pub node: NodeId,
    /// The node that is differentiated; one number.
    pub loss: NodeId,
    /// The needed external node with respect to which `loss` is differentiated, usually a variable. The
    /// gradient is zero if the loss does not depend on it.
    pub of: NodeId,
}

impl Cut<'_> {
    /// Returns true for the needed nodes that are no kernels: the caller provides their values.
    pub(super) fn is_external(&self, node: NodeId) -> bool {
        let op = &self.graph.nodes[node.index()].op;
        self.given[node.index()] || matches!(op, Op::Input { .. } | Op::Variable { .. })
    }
}
