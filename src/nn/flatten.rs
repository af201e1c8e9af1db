//! The layer that flattens every example.

use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::NodeId;

use super::Layer;

/// A layer that flattens every example: `[batch, …]` → `[batch, n]`, with the same elements in the same
/// order.
#[derive(Clone, Copy, Debug)]
#[must_use = "a layer does nothing before it is applied"]
pub struct Flatten;

/// Makes a layer that flattens every example into one row.
pub fn flatten() -> Flatten {
    Flatten
}

impl Layer for Flatten {
    fn apply(&self, g: &mut GraphBuilder, x: NodeId) -> NodeId {
        match g.example_shape(x) {
            Some(example) => g.reshape(x, [example.elements()]),
            None => g.refuse("[batch, ..]", &[x]),
        }
    }
}
