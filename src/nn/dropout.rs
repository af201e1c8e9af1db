//! Dropout: noise that keeps a model from relying on single numbers.

use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::NodeId;

use super::Layer;

/// Any shape → the same. In training each element is 0 with probability `rate`, and else divided by 1 − rate;
/// in evaluation it does nothing (Srivastava et al. 2014).
#[derive(Clone, Copy, Debug)]
#[must_use = "a layer does nothing before it is applied"]
pub struct Dropout {
    rate: f32,
}

/// Makes a dropout with this rate, from 0 to less than 1.
pub fn dropout(rate: f32) -> Dropout {
    Dropout { rate }
}

impl Layer for Dropout {
    fn apply(&self, g: &mut GraphBuilder, x: NodeId) -> NodeId {
        g.dropout(x, self.rate)
    }
}
