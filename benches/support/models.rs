//! The models of the benchmarks.

// Each benchmark uses only a part of this module.
#![allow(dead_code)]

use pushpull::nn::{
    Layer, conv2d, dense, embedding, flatten, layer_norm, max_pool, multi_head_attention, residual,
    sequential,
};
use pushpull::{GraphBuilder, GraphSpec, InitializerSpec, NodeId};

/// The number of characters from which [`language_model`] predicts the next ones.
pub(crate) const CHARACTERS: usize = 32;
/// The width of [`language_model`].
const WIDTH: usize = 64;

/// Returns the MLP 784-width-width-10. Most benchmarks use a width of 512.
pub(crate) fn mlp(width: usize) -> anyhow::Result<GraphSpec> {
    mlp_of(&[28, 28], width)
}

/// Returns the MLP 784-width-width-10 for images of the given shape, which must have 784 elements.
pub(crate) fn mlp_of(shape: &[usize], width: usize) -> anyhow::Result<GraphSpec> {
    let mut g = GraphBuilder::new("mlp");
    let images = g.input("features", shape.to_vec());
    let labels = g.labels("labels");
    let mut x = g.reshape(images, [784]);
    for layer in ["dense1", "dense2"] {
        x = dense(layer, width).relu().apply(&mut g, x);
    }
    let logits = dense("logits", 10).apply(&mut g, x);
    let loss = g.softmax_cross_entropy(logits, labels);
    Ok(g.finish(loss, &[])?)
}

/// Returns the width of the MLP of [`mlp`] whose variables have about this number of bytes.
pub(crate) fn mlp_width(bytes: u64) -> usize {
    // The number of variables is width² + (784 + 10 + 2) width + 10.
    let (linear, variables) = (796.0, bytes as f64 / 4.0 - 10.0);
    ((f64::sqrt(linear * linear + 4.0 * variables.max(0.0)) - linear) / 2.0).round().max(1.0) as usize
}

/// Returns the graph of a convolutional network 32C3-P2-64C3-P2-128-10.
pub(crate) fn cnn() -> anyhow::Result<GraphSpec> {
    let mut g = GraphBuilder::new("cnn");
    let images = g.input("features", [28, 28]);
    let labels = g.labels("labels");
    let x = g.reshape(images, [28, 28, 1]);
    let x = conv2d("conv1", 32, [3, 3]).relu().apply(&mut g, x);
    let x = max_pool(2).apply(&mut g, x);
    let x = conv2d("conv2", 64, [3, 3]).relu().apply(&mut g, x);
    let x = max_pool(2).apply(&mut g, x);
    let x = flatten().apply(&mut g, x);
    let x = dense("dense1", 128).relu().apply(&mut g, x);
    let logits = dense("logits", 10).apply(&mut g, x);
    let loss = g.softmax_cross_entropy(logits, labels);
    Ok(g.finish(loss, &[])?)
}

/// Returns the MLP 784-width-width-10 with its accuracy, as the example `mnist` has it.
pub(crate) fn classifier(width: usize) -> anyhow::Result<GraphSpec> {
    let mut g = GraphBuilder::new("mlp");
    let images = g.input("features", [28, 28]);
    let labels = g.labels("labels");
    let mut x = flatten().apply(&mut g, images);
    for layer in ["dense1", "dense2"] {
        x = dense(layer, width).relu().apply(&mut g, x);
    }
    let logits = dense("logits", 10).apply(&mut g, x);
    let loss = g.softmax_cross_entropy(logits, labels);
    let accuracy = g.accuracy(logits, labels);
    Ok(g.finish(loss, &[("accuracy", accuracy)])?)
}

/// Returns the model of the example `char_lm` with one block, half the width and half as many characters.
pub(crate) fn language_model() -> anyhow::Result<GraphSpec> {
    let positions = |g: &mut GraphBuilder, x: NodeId| {
        let initializer = InitializerSpec::Normal { mean: 0.0, stddev: 0.02 };
        let positions = g.variable("positions", [CHARACTERS, WIDTH], initializer);
        g.add(x, positions)
    };
    let mut g = GraphBuilder::new("language_model");
    let characters = g.ids("features", [CHARACTERS]);
    let next = g.ids("labels", [CHARACTERS]);
    let attention =
        residual("attention").add(layer_norm("norm")).add(multi_head_attention("heads", 2).causal());
    let up = dense("up", 4 * WIDTH).gelu();
    let mlp = residual("mlp").add(layer_norm("norm")).add(up).add(dense("down", WIDTH));
    let network = sequential("lm").add(embedding("characters", 256, WIDTH)).add(positions);
    let network = network.add(sequential("block").add(attention).add(mlp));
    let network = network.add(layer_norm("norm")).add(dense("logits", 256));
    let logits = network.apply(&mut g, characters);
    let loss = g.softmax_cross_entropy(logits, next);
    let accuracy = g.accuracy(logits, next);
    Ok(g.finish(loss, &[("accuracy", accuracy)])?)
}
