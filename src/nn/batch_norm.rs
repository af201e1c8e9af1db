//! Batch normalisation.

use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::NodeId;
use pushpull_messages::variable::InitializerSpec;

use super::Layer;
use super::layer::{Identity, epsilon_setter, floats};

/// Batch normalisation (Ioffe & Szegedy 2015): `[batch, …, c]` → the same shape. Each channel is normalised
/// to mean 0 and variance 1, multiplied by `gamma`, and shifted by `beta`.
///
/// In training, the mean and the variance are computed over the worker's batch. In evaluation they are taken
/// from the variables `moving_mean` and `moving_variance`. Training updates these two from the batches,
/// without gradients. All four variables have the shape `[c]`. A bias in the preceding layer has no effect,
/// because the mean is subtracted.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing before it is applied"]
pub struct BatchNorm {
    identity: Identity,
    epsilon: f32,
    momentum: f32,
}

/// Makes a batch normalisation with epsilon 0.001 and momentum 0.99, as in Keras.
pub fn batch_norm(name: impl Into<String>) -> BatchNorm {
    BatchNorm { identity: Identity::new(name), epsilon: 1e-3, momentum: 0.99 }
}

impl BatchNorm {
    /// Sets the momentum m, from 0 to 1. At each step, the new moving mean is m times the old moving mean,
    /// plus 1 − m times the mean of the batch. The moving variance is computed in the same way. A job of a
    /// few hundred steps needs a momentum below the default 0.99.
    pub fn momentum(mut self, momentum: f32) -> Self {
        self.momentum = momentum;
        self
    }
}

epsilon_setter!(BatchNorm);

impl Layer for BatchNorm {
    fn apply(&self, g: &mut GraphBuilder, x: NodeId) -> NodeId {
        self.identity.build(g, |g| {
            let Some(&[channels]) = floats(g, x).filter(|x| x.len() >= 2).and_then(|x| x.last_chunk()) else {
                return g.refuse("f32 [batch, .., channels]", &[x]);
            };
            let ones = InitializerSpec::Constant { value: 1.0 };
            let gamma = g.variable("gamma", [channels], ones.clone());
            let beta = g.variable("beta", [channels], InitializerSpec::Zeros);
            let mean = g.untrained("moving_mean", [channels], InitializerSpec::Zeros);
            let variance = g.untrained("moving_variance", [channels], ones);
            g.batch_norm(x, [gamma, beta], [mean, variance], self.epsilon, self.momentum)
        })
    }
}
