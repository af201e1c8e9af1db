//! Residual blocks: layers whose input is added to their output.

use std::rc::Rc;

use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::NodeId;

use super::layer::floats;
use super::{Layer, Sequential, sequential};

/// A residual block, which computes shortcut(x) + layers(x) from its input x (He et al. 2015). Its variables
/// are in a scope with the block's name. By default the shortcut is x itself. The shortcut must have the
/// same shape as the layers' output.
#[derive(Clone)]
#[must_use = "a layer does nothing before it is applied"]
pub struct Residual {
    layers: Sequential,
    shortcut: Option<Rc<dyn Layer>>,
}

/// Makes an empty residual block.
pub fn residual(name: impl Into<String>) -> Residual {
    Residual { layers: sequential(name), shortcut: None }
}

impl Residual {
    /// Appends a layer to the sequence whose output is added to the shortcut.
    #[expect(clippy::should_implement_trait, reason = "nothing is summed")]
    pub fn add(mut self, layer: impl Layer + 'static) -> Self {
        self.layers = self.layers.add(layer);
        self
    }

    /// Sets the layer that computes the shortcut from the block's input. This layer is needed if the other
    /// layers change the shape.
    pub fn shortcut(mut self, layer: impl Layer + 'static) -> Self {
        self.shortcut = Some(Rc::new(layer));
        self
    }
}

impl Layer for Residual {
    fn apply(&self, g: &mut GraphBuilder, x: NodeId) -> NodeId {
        self.layers.apply_and(g, x, |g, y| {
            let around = self.shortcut.as_ref().map_or(x, |shortcut| shortcut.apply(g, x));
            // The addition alone would also accept an axis of extent 1 in one operand, and repeat its
            // elements.
            if floats(g, around) != floats(g, y) {
                return g.refuse("layers and a shortcut with the same output shape", &[y, around]);
            }
            g.add(around, y)
        })
    }
}
