//! Dropout: noise that keeps a model from relying on single elements.

use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::NodeId;

use super::Layer;

/// Dropout (Srivastava et al. 2014), for a tensor of any shape. In training it sets each element to 0 with
/// probability `rate`, and divides the remaining elements by 1 − `rate`. In evaluation it changes nothing.
#[derive(Clone, Copy, Debug)]
#[must_use = "a layer does nothing before it is applied"]
pub struct Dropout {
    rate: f32,
}

/// Makes a dropout layer with this rate, at least 0 and less than 1.
pub fn dropout(rate: f32) -> Dropout {
    Dropout { rate }
}

impl Layer for Dropout {
    fn apply(&self, g: &mut GraphBuilder, x: NodeId) -> NodeId {
        g.dropout(x, self.rate)
    }
}
