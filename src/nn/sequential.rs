//! A layer that applies several layers in order.

use std::rc::Rc;

use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::NodeId;

use super::Layer;
use super::layer::Identity;

/// A sequence of layers. Its variables are in a scope with the sequence's name, for example
/// `trunk/dense1/kernel`.
#[derive(Clone)]
#[must_use = "a layer does nothing before it is applied"]
pub struct Sequential {
    identity: Identity,
    layers: Vec<Rc<dyn Layer>>,
}

/// Makes an empty sequence.
pub fn sequential(name: impl Into<String>) -> Sequential {
    Sequential { identity: Identity::new(name), layers: Vec::new() }
}

impl Sequential {
    /// Appends a layer.
    #[expect(clippy::should_implement_trait, reason = "nothing is summed")]
    pub fn add(mut self, layer: impl Layer + 'static) -> Self {
        self.layers.push(Rc::new(layer));
        self
    }

    /// Applies the layers and then the function `then`, all within the sequence's scope.
    pub(super) fn apply_and(
        &self,
        g: &mut GraphBuilder,
        x: NodeId,
        then: impl FnOnce(&mut GraphBuilder, NodeId) -> NodeId,
    ) -> NodeId {
        self.identity.build(g, |g| {
            let y = self.layers.iter().fold(x, |x, layer| layer.apply(g, x));
            then(g, y)
        })
    }
}

impl Layer for Sequential {
    fn apply(&self, g: &mut GraphBuilder, x: NodeId) -> NodeId {
        self.apply_and(g, x, |_, y| y)
    }
}
