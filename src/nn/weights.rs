//! What a fully connected layer and a convolution have in common: a kernel, perhaps a bias, and an activation.

use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::NodeId;
use pushpull_messages::tensor::Shape;
use pushpull_messages::variable::InitializerSpec;

use super::{Activation, Layer};

#[derive(Clone, Debug)]
pub(super) struct Weights {
    pub(super) activation: Activation,
    pub(super) bias: bool,
    /// How the kernel starts, if not as is usual before the activation.
    pub(super) initializer: Option<InitializerSpec>,
}

impl Default for Weights {
    fn default() -> Self {
        Self { activation: Activation::Linear, bias: true, initializer: None }
    }
}

impl Weights {
    /// The variable `kernel`.
    pub(super) fn kernel(&self, g: &mut GraphBuilder, shape: impl Into<Shape>) -> NodeId {
        let initializer = self.initializer.clone().unwrap_or_else(|| self.activation.initializer());
        g.variable("kernel", shape, initializer)
    }

    /// activation(product + bias), with the variable `bias` `[channels]`.
    pub(super) fn finish(&self, g: &mut GraphBuilder, product: NodeId, channels: usize) -> NodeId {
        let sum = if self.bias {
            let bias = g.variable("bias", [channels], InitializerSpec::Zeros);
            g.bias_add(product, bias)
        } else {
            product
        };
        self.activation.apply(g, sum)
    }
}
