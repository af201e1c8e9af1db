//! Layers over images: convolution and pooling.

use messages::graph::{GraphBuilder, Stride};
use messages::id::NodeId;
use messages::variable::InitializerSpec;

use super::Activation;

/// activation(x ∗ kernel + bias): `[batch, h, w, cin]` → `[batch, ho, wo, channels]`, with the variables `name/kernel`
/// `[window, window, cin, channels]` and `name/bias` `[channels]`.
pub fn conv2d(
    g: &mut GraphBuilder,
    name: &str,
    x: NodeId,
    channels: usize,
    window: usize,
    geometry: Stride,
    activation: Activation,
) -> NodeId {
    // Where the shape of x is not known something is wrong already, and the builder will tell.
    let inputs = g.example_shape(x).and_then(|shape| shape.0.last().copied()).unwrap_or(1);
    let initializer = match activation {
        Activation::Linear => InitializerSpec::GlorotUniform,
        Activation::Relu => InitializerSpec::HeNormal,
    };
    let kernel = g.variable(&format!("{name}/kernel"), [window, window, inputs, channels], initializer);
    let bias = g.variable(&format!("{name}/bias"), [channels], InitializerSpec::Zeros);
    let product = g.conv2d(x, kernel, geometry);
    let sum = g.bias_add(product, bias);
    match activation {
        Activation::Linear => sum,
        Activation::Relu => g.relu(sum),
    }
}

/// Every example in one row: `[batch, …]` → `[batch, n]`.
pub fn flatten(g: &mut GraphBuilder, x: NodeId) -> NodeId {
    let elements = g.example_shape(x).and_then(|shape| shape.checked_elements()).unwrap_or(1);
    g.reshape(x, [elements])
}
