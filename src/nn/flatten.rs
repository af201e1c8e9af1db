//! The layer that makes one row of every example.

use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::NodeId;

use super::Layer;

/// `[batch, …]` → `[batch, n]`: the same elements.
#[derive(Clone, Copy, Debug)]
#[must_use = "a layer does nothing before it is applied"]
pub struct Flatten;

/// Makes a layer that turns every example into one row.
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
