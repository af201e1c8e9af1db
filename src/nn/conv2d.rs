//! The two-dimensional convolution.

use pushpull_messages::graph::{GraphBuilder, Padding, Stride};
use pushpull_messages::id::NodeId;

use super::Layer;
use super::layer::{Identity, floats};
use super::weights::{Weights, weights_setters};

/// A convolution over images: activation(x ∗ kernel + bias). It maps `[batch, h, w, cin]` to
/// `[batch, ho, wo, channels]`. Its variables are `kernel` `[kh, kw, cin, channels]` and `bias` `[channels]`.
///
/// By default the stride is one pixel and the image is not padded. The kernel is initialised as in He et al.
/// 2015 if a relu or a similar activation follows, and as in Glorot & Bengio 2010 otherwise.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing before it is applied"]
pub struct Conv2d {
    identity: Identity,
    channels: usize,
    kernel: [usize; 2],
    moves: Stride,
    weights: Weights,
}

/// Makes a convolution with `channels` output channels and a kernel of `[height, width]` pixels.
pub fn conv2d(name: impl Into<String>, channels: usize, kernel: [usize; 2]) -> Conv2d {
    let (identity, weights) = (Identity::new(name), Weights::default());
    Conv2d { identity, channels, kernel, moves: Stride::ONE, weights }
}

impl Conv2d {
    /// Sets the stride: the number of pixels between one position of the kernel and the next, along both
    /// axes.
    pub fn stride(mut self, pixels: usize) -> Self {
        self.moves.stride = [pixels, pixels];
        self
    }

    /// Pads the image with zeros, so that the output has h / stride rows and w / stride columns, rounded up.
    pub fn same(mut self) -> Self {
        self.moves.padding = Padding::Same;
        self
    }
}

weights_setters!(Conv2d);

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
