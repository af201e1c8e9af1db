//! Layer normalisation.

use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::NodeId;
use pushpull_messages::variable::InitializerSpec;

use super::Layer;
use super::layer::{Identity, epsilon_setter, floats};

/// Layer normalisation (Ba et al. 2016): `[batch, …, n]` → the same shape. Each row is normalised to mean 0
/// and variance 1, multiplied by `gamma` `[n]`, and shifted by `beta` `[n]`.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing before it is applied"]
pub struct LayerNorm {
    identity: Identity,
    epsilon: f32,
}

/// Makes a layer normalisation with epsilon 0.00001, as in PyTorch; Keras uses 0.001.
pub fn layer_norm(name: impl Into<String>) -> LayerNorm {
    LayerNorm { identity: Identity::new(name), epsilon: 1e-5 }
}

epsilon_setter!(LayerNorm);

impl Layer for LayerNorm {
    fn apply(&self, g: &mut GraphBuilder, x: NodeId) -> NodeId {
        self.identity.build(g, |g| {
            let Some(&[width]) = floats(g, x).filter(|x| x.len() >= 2).and_then(|x| x.last_chunk()) else {
                return g.refuse("f32 [batch, .., n]", &[x]);
            };
            let gamma = g.variable("gamma", [width], InitializerSpec::Constant { value: 1.0 });
            let beta = g.variable("beta", [width], InitializerSpec::Zeros);
            g.layer_norm(x, [gamma, beta], self.epsilon)
        })
    }
}
