//! The models of the benchmarks.

// Each benchmark uses only a part of this module.
#![allow(dead_code)]

use pushpull::nn::{Layer, conv2d, dense, flatten, max_pool};
use pushpull::{GraphBuilder, GraphSpec};

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
