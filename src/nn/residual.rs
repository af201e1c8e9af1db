//! Layers whose input is added to their output.

use std::rc::Rc;

use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::NodeId;

use super::layer::floats;
use super::{Layer, Sequential, sequential};

/// shortcut(x) + layers(x), in a scope of its name (He et al. 2015). The shortcut is x itself, unless told otherwise,
/// and gives the same shape as the layers.
#[derive(Clone)]
#[must_use = "a layer does nothing before it is applied"]
pub struct Residual {
    layers: Sequential,
    shortcut: Option<Rc<dyn Layer>>,
}

/// An empty residual block of that name.
pub fn residual(name: impl Into<String>) -> Residual {
    Residual { layers: sequential(name), shortcut: None }
}

impl Residual {
    /// With this layer after the others.
    #[expect(clippy::should_implement_trait, reason = "nothing is summed")]
    pub fn add(mut self, layer: impl Layer + 'static) -> Self {
        self.layers = self.layers.add(layer);
        self
    }

    /// With this layer on the way around the others: where they change the shape, it has to change, too.
    pub fn shortcut(mut self, layer: impl Layer + 'static) -> Self {
        self.shortcut = Some(Rc::new(layer));
        self
    }
}

impl Layer for Residual {
    fn apply(&self, g: &mut GraphBuilder, x: NodeId) -> NodeId {
        self.layers.apply_and(g, x, |g, y| {
            let around = self.shortcut.as_ref().map_or(x, |shortcut| shortcut.apply(g, x));
            // An addition alone would repeat axes of extent 1.
            if floats(g, around) != floats(g, y) {
                return g.refuse("layers and a shortcut that give the same shape", &[y, around]);
            }
            g.add(around, y)
        })
    }
}
