//! The fully connected layer.

use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::NodeId;
use pushpull_messages::variable::InitializerSpec;

use super::layer::{Identity, floats};
use super::weights::Weights;
use super::{Activation, Layer};

/// activation(x·kernel + bias): `[batch, …, n]` → `[batch, …, units]`, with the variables `kernel` `[n, units]` and
/// `bias` `[units]`.
///
/// Before a relu or the like the kernel starts as He et al. 2015 proposed, else as Glorot & Bengio 2010 did.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing before it is applied"]
pub struct Dense {
    identity: Identity,
    units: usize,
    weights: Weights,
}

/// A fully connected layer of that name, with so many outputs.
pub fn dense(name: impl Into<String>, units: usize) -> Dense {
    Dense::of(Identity::new(name), units)
}

impl Dense {
    pub(super) fn of(identity: Identity, units: usize) -> Self {
        Self { identity, units, weights: Weights::default() }
    }

    /// With this function of the outputs.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.weights.activation = activation;
        self
    }

    /// With a relu of the outputs.
    pub fn relu(self) -> Self {
        self.activation(Activation::Relu)
    }

    /// With a gelu of the outputs.
    pub fn gelu(self) -> Self {
        self.activation(Activation::Gelu)
    }

    /// Without a bias.
    pub fn no_bias(mut self) -> Self {
        self.weights.bias = false;
        self
    }

    /// With a kernel that starts like this.
    pub fn initializer(mut self, initializer: InitializerSpec) -> Self {
        self.weights.initializer = Some(initializer);
        self
    }
}

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
