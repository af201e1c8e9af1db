//! The convolution over images.

use pushpull_messages::graph::{GraphBuilder, Padding, Stride};
use pushpull_messages::id::NodeId;
use pushpull_messages::variable::InitializerSpec;

use super::layer::{Identity, floats};
use super::weights::Weights;
use super::{Activation, Layer};

/// activation(x ∗ kernel + bias): `[batch, h, w, cin]` → `[batch, ho, wo, channels]`, with the variables `kernel`
/// `[kh, kw, cin, channels]` and `bias` `[channels]`.
///
/// The kernel moves by one pixel and stays within the image, unless told otherwise. Before a relu or the like it starts
/// as He et al. 2015 proposed, else as Glorot & Bengio 2010 did.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing before it is applied"]
pub struct Conv2d {
    identity: Identity,
    channels: usize,
    kernel: [usize; 2],
    moves: Stride,
    weights: Weights,
}

/// A convolution of that name, with so many outputs and a kernel of that height and width.
pub fn conv2d(name: impl Into<String>, channels: usize, kernel: [usize; 2]) -> Conv2d {
    let (identity, weights) = (Identity::new(name), Weights::default());
    Conv2d { identity, channels, kernel, moves: Stride::ONE, weights }
}

impl Conv2d {
    /// The kernel moves by so many pixels, down and to the right.
    pub fn stride(mut self, pixels: usize) -> Self {
        self.moves.stride = [pixels, pixels];
        self
    }

    /// The image is padded with zeros, so that there are as many outputs as there are strides in it.
    pub fn same(mut self) -> Self {
        self.moves.padding = Padding::Same;
        self
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

impl Layer for Conv2d {
    fn apply(&self, g: &mut GraphBuilder, x: NodeId) -> NodeId {
        self.identity.build(g, |g| {
            let Some(&[_, _, _, inputs]) = floats(g, x) else {
                return g.refuse("f32 images [batch, h, w, channels]", &[x]);
            };
            let [height, width] = self.kernel;
            let kernel = self.weights.kernel(g, [height, width, inputs, self.channels]);
            let product = g.conv2d(x, kernel, self.moves);
            self.weights.finish(g, product, self.channels)
        })
    }
}
