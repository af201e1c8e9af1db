//! Tests of graphs: a valid graph passes the check, and a graph with a fault is refused with an error that
//! names the node.

mod building;
mod every_op;
mod fault;
mod hostile;
mod session_building;
mod session_hostile;
mod session_ops;
mod session_shapes;
mod shapes;
mod stages;

use super::*;
use crate::variable::InitializerSpec;

/// Returns a small classifier with 6 inputs, 4 hidden units and 3 classes.
fn classifier() -> GraphSpec {
    let mut g = GraphBuilder::new("classifier");
    let x = g.input("features", [2, 3]);
    let labels = g.labels("labels");
    let x = g.reshape(x, [6]);
    let kernel = g.variable("dense1/kernel", [6, 4], InitializerSpec::HeNormal);
    let bias = g.variable("dense1/bias", [4], InitializerSpec::Zeros);
    let hidden = g.matmul(x, kernel);
    let hidden = g.bias_add(hidden, bias);
    let hidden = g.relu(hidden);
    let kernel = g.variable("dense2/kernel", [4, 3], InitializerSpec::GlorotUniform);
    let logits = g.matmul(hidden, kernel);
    let loss = g.softmax_cross_entropy(logits, labels);
    let accuracy = g.accuracy(logits, labels);
    g.finish(loss, &[("accuracy", accuracy)]).unwrap()
}
