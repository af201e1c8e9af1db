//! The part in which each kernel of a cut graph runs. This module must not depend on edges.

use std::collections::BTreeMap;

use pushpull_messages::id::NodeId;

use crate::fetch::Groups;
use crate::fuse::fuse;
use crate::ir::{Epilogue, Ir, Kernel, Value};

/// The place where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// Each part that reads the value computes it: it is a constant.
    Everywhere,
    /// The caller computes the value beside this part.
    Beside(u32),
    /// The program of this part computes the value.
    Within(u32),
}

/// Returns the home of each kernel; `part` returns the part of a node. A kernel runs in the part of the node
/// for which it was created, so the backward pass of a node runs where the node itself does. A view is where
/// the viewed value is.
///
/// There is one exception. If the uncut program would merge the addition of a bias into a product or a
/// convolution, the addition runs where the product does. A merged kernel starts each sum from the bias, so
/// it rounds differently from two separate kernels. All other merged kernels round as the separate ones do.
/// So the results are those of the uncut program, bit for bit, wherever the nodes run.
pub(super) fn homes(part: impl Fn(NodeId) -> u32, ir: &Ir, targets: &[Value]) -> Vec<Home> {
    let products = merged_biases(ir, targets);
    let mut homes: Vec<Home> = Vec::with_capacity(ir.nodes.len());
    for (position, node) in ir.nodes.iter().enumerate() {
        homes.push(match node.kernel {
            Kernel::Constant(_) | Kernel::Share => Home::Everywhere,
            Kernel::Column(_) | Kernel::Variable(_) => Home::Beside(part(node.origin)),
            Kernel::View => homes[node.inputs[0].node],
            _ => products
                .get(&position)
                .map_or_else(|| Home::Within(part(node.origin)), |&product| homes[product]),
        });
    }
    homes
}

/// Returns the additions of biases that are merged into products and convolutions if the graph is not cut:
/// the index of the addition, and that of the product.
fn merged_biases(ir: &Ir, targets: &[Value]) -> BTreeMap<usize, usize> {
    let targets: Vec<_> = targets.iter().map(|&target| (target, Groups::ALWAYS)).collect();
    let mut merged = BTreeMap::new();
    for draft in fuse(ir, &targets).drafts {
        let (Kernel::Product(_, epilogue) | Kernel::Conv2d(_, epilogue)) = draft.kernel else { continue };
        let addition = match epilogue {
            Epilogue::Bare => continue,
            Epilogue::Bias => draft.node,
            Epilogue::BiasRelu => ir.root(ir.nodes[draft.node].inputs[0]).node,
        };
        let bias = draft.inputs[2];
        let terms = ir.nodes[addition].inputs.iter().map(|&term| ir.root(term));
        let product = terms.into_iter().find(|&term| term != bias).expect("a bias is added to a product");
        merged.insert(addition, product.node);
    }
    merged
}
