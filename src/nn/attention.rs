//! Self-attention with several heads.

use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::NodeId;

use super::Layer;
use super::dense::Dense;
use super::layer::{Identity, floats};

/// Multi-head self-attention (Vaswani et al. 2017): `[batch, length, width]` → the same shape. In each head,
/// every position takes a mean of the values of all positions, weighted by softmax(query·keyᵀ / √size). The
/// size of a head is width / heads.
///
/// The layer's variables are those of four [`Dense`] layers that keep the width: `query/kernel` and
/// `query/bias`, and the same two for `key`, `value` and `output`.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing before it is applied"]
pub struct MultiHeadAttention {
    identity: Identity,
    heads: usize,
    causal: bool,
    inputs: [Identity; 3],
    output: Identity,
}

/// Makes a self-attention layer. The width of the layer's input must be a multiple of `heads`.
pub fn multi_head_attention(name: impl Into<String>, heads: usize) -> MultiHeadAttention {
    MultiHeadAttention {
        identity: Identity::new(name),
        heads,
        causal: false,
        inputs: ["query", "key", "value"].map(Identity::new),
        output: Identity::new("output"),
    }
}

impl MultiHeadAttention {
    /// Lets each position attend only to itself and to the positions before it.
    pub fn causal(mut self) -> Self {
        self.causal = true;
        self
    }
}

impl Layer for MultiHeadAttention {
    fn apply(&self, g: &mut GraphBuilder, x: NodeId) -> NodeId {
        self.identity.build(g, |g| {
            let heads = self.heads;
            let fits = |x: &&[usize]| x.len() == 3 && heads > 0 && x[2].is_multiple_of(heads);
            let Some(&[_, length, width]) = floats(g, x).filter(fits) else {
                let expected =
                    "f32 [batch, length, width] with a width that is a multiple of the number of heads";
                return g.refuse(format!("{expected}, {heads}"), &[x]);
            };
            let size = width / heads;
            let [query, key, value] = self.inputs.each_ref().map(|input| {
                let x = Dense::of(input.clone(), width).apply(g, x);
                let x = g.reshape(x, [length, heads, size]);
                g.transpose(x, &[0, 2, 1, 3])
            });
            // Query, key and value now have the shape [batch, heads, length, size].
            let query = g.scale(query, 1.0 / (size as f32).sqrt());
            let scores = g.matmul_transposed(query, key, [false, true]);
            let shares = if self.causal { g.causal_softmax(scores) } else { g.softmax(scores) };
            let mean = g.matmul(shares, value);
            let mean = g.transpose(mean, &[0, 2, 1, 3]);
            let mean = g.reshape(mean, [length, width]);
            Dense::of(self.output.clone(), width).apply(g, mean)
        })
    }
}
