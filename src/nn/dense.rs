//! The fully connected layer.

use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::NodeId;

use super::Layer;
use super::layer::{Identity, floats};
use super::weights::{Weights, weights_setters};

/// A fully connected layer: activation(x·kernel + bias). It maps `[batch, …, n]` to `[batch, …, units]`, with
/// the variables `kernel` `[n, units]` and `bias` `[units]`.
///
/// The kernel has the initial values of He et al. 2015 if a relu or a similar activation follows, and those
/// of Glorot & Bengio 2010 otherwise.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing before it is applied"]
pub struct Dense {
    identity: Identity,
    units: usize,
    weights: Weights,
}

/// Makes a fully connected layer with `units` outputs.
pub fn dense(name: impl Into<String>, units: usize) -> Dense {
    Dense::of(Identity::new(name), units)
}

impl Dense {
    pub(super) fn of(identity: Identity, units: usize) -> Self {
        Self { identity, units, weights: Weights::default() }
    }
}

weights_setters!(Dense);

impl Layer for Dense {
    fn apply(&self, g: &mut GraphBuilder, x: NodeId) -> NodeId {
        self.identity.build(g, |g| {
            let Some(&[_, .., inputs]) = floats(g, x).filter(|x| x.len() >= 2) else {
                return g.refuse("f32 [batch, .., n]", &[x]);
            };
            let kernel = self.weights.kernel(g, [inputs, self.units]);
            let product = g.matmul(x, kernel);
            self.weights.finish(g, product, self.units)
        })
    }
}
