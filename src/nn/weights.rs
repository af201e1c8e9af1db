//! The part that fully connected layers and convolutions have in common: a kernel, an optional bias, and an
//! activation.

use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::NodeId;
use pushpull_messages::tensor::Shape;
use pushpull_messages::variable::InitializerSpec;

use super::{Activation, Layer};

/// The settings of a kernel, its bias and its activation.
#[derive(Clone, Debug)]
pub(super) struct Weights {
    pub(super) activation: Activation,
    pub(super) bias: bool,
    /// The initial values of the kernel; with `None` they are chosen to suit the activation.
    pub(super) initializer: Option<InitializerSpec>,
}

impl Default for Weights {
    fn default() -> Self {
        Self { activation: Activation::Linear, bias: true, initializer: None }
    }
}

impl Weights {
    /// Adds the variable `kernel`.
    pub(super) fn kernel(&self, g: &mut GraphBuilder, shape: impl Into<Shape>) -> NodeId {
        let initializer = self.initializer.clone().unwrap_or_else(|| self.activation.initializer());
        g.variable("kernel", shape, initializer)
    }

    /// Returns activation(product + bias), and adds the variable `bias` `[channels]` unless the layer has no
    /// bias.
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

/// Defines the setters of a layer that has a field `weights`.
macro_rules! weights_setters {
    ($layer:ty) => {
        impl $layer {
            /// Applies this function to the outputs.
            pub fn activation(mut self, activation: $crate::nn::Activation) -> Self {
                self.weights.activation = activation;
                self
            }

            /// Applies a relu to the outputs.
            pub fn relu(self) -> Self {
                self.activation($crate::nn::Activation::Relu)
            }

            /// Applies a gelu to the outputs.
            pub fn gelu(self) -> Self {
                self.activation($crate::nn::Activation::Gelu)
            }

            /// Omits the bias.
            pub fn no_bias(mut self) -> Self {
                self.weights.bias = false;
                self
            }

            /// Sets the initial values of the kernel.
            pub fn initializer(mut self, initializer: $crate::InitializerSpec) -> Self {
                self.weights.initializer = Some(initializer);
                self
            }
        }
    };
}
pub(super) use weights_setters;
