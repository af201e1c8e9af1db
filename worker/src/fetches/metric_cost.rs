//! Estimates what the metrics of a training step cost. This module must not depend on how a graph is run.
//!
//! Wanted properties: (A) metrics that take a small part of a step are computed in every step; (B) a node
//! that the loss needs anyway adds nothing to the cost of a metric.

use pushpull_messages::graph::{GraphSpec, Op};
use pushpull_messages::id::NodeId;
use pushpull_messages::tensor::TensorSpec;

/// The interval, in steps, at which a worker computes metrics that cost more than a small part of a step.
const COSTLY_EVERY: u64 = 10;
/// The number of elements that metrics may touch in every step, even if the rest of the step touches only a
/// few. Touching them takes a few microseconds, less than the push and pull of any step.
const ELEMENTS_FREE: usize = 4096;
/// Metrics are computed in every step only if the rest of the step touches at least this many elements for
/// each element that the metrics touch.
const STEP_PER_METRIC: usize = 64;

/// Returns the default interval, in steps, at which a worker computes the metrics of batches of `batch`
/// examples.
pub(super) fn usual_every(graph: &GraphSpec, batch: usize) -> u64 {
    let Ok(tensors) = graph.infer(batch) else { return COSTLY_EVERY };
    let [step, metrics] = touched(graph, &tensors);
    if metrics <= ELEMENTS_FREE || metrics.saturating_mul(STEP_PER_METRIC) <= step { 1 } else { COSTLY_EVERY }
}

/// Returns the number of elements that the loss reads and writes, and the number of elements that only the
/// metrics read and write. The gradients and the variables are not counted.
fn touched(graph: &GraphSpec, tensors: &[TensorSpec]) -> [usize; 2] {
    let loss = needed(graph, [graph.loss]);
    let metrics = needed(graph, graph.metrics.iter().map(|metric| metric.node));
    let mut sums = [0usize; 2];
    for (position, node) in graph.nodes.iter().enumerate() {
        let sum = match (loss[position], metrics[position]) {
            (true, _) => &mut sums[0],
            (false, true) => &mut sums[1],
            (false, false) => continue,
        };
        let elements = |position: usize| tensors[position].shape.elements();
        let read = node.inputs.iter().map(|input| elements(input.index()));
        let moved = match node.op {
            // A product or a convolution uses each element of a kernel for every row.
            Op::MatMul { .. } | Op::Conv2d(_) => {
                let [x, kernel] = [node.inputs[0], node.inputs[1]].map(|input| elements(input.index()));
                x.saturating_add(kernel.saturating_mul(rows(&tensors[position]) / PRODUCTS_PER_ELEMENT))
            }
            Op::Input { .. } | Op::Variable { .. } | Op::Constant { .. } | Op::Reshape { .. } => 0,
            _ => read.fold(elements(position), usize::saturating_add),
        };
        *sum = sum.saturating_add(moved);
    }
    sums
}

/// The number of multiplications that take about as long as reading or writing one element in memory.
const PRODUCTS_PER_ELEMENT: usize = 8;

/// Returns the number of rows of a tensor.
fn rows(tensor: &TensorSpec) -> usize {
    tensor.shape.elements() / tensor.shape.0.last().copied().unwrap_or(1).max(1)
}

/// Returns, for each node of the graph, whether the node is in `by` or a node in `by` depends on it.
fn needed(graph: &GraphSpec, by: impl IntoIterator<Item = NodeId>) -> Vec<bool> {
    let mut needed = vec![false; graph.nodes.len()];
    by.into_iter().for_each(|node| needed[node.index()] = true);
    for position in (0..graph.nodes.len()).rev() {
        if needed[position] {
            graph.nodes[position].inputs.iter().for_each(|input| needed[input.index()] = true);
        }
    }
    needed
}

#[cfg(test)]
mod tests {
    use pushpull_messages::graph::GraphBuilder;
    use pushpull_messages::variable::InitializerSpec;

    use super::*;

    /// Returns a classifier with one layer, whose kernel has the shape `[inputs, classes]`. The metric is
    /// the accuracy or, if `area` is true, the area under the ROC curve of the first class; the area is
    /// computed from 8192 counts.
    fn classifier(inputs: usize, classes: usize, area: bool) -> GraphSpec {
        let mut g = GraphBuilder::new("classifier");
        let x = g.input("features", [inputs]);
        let labels = g.labels("labels");
        let kernel = g.variable("kernel", [inputs, classes], InitializerSpec::Zeros);
        let logits = g.matmul(x, kernel);
        let loss = g.softmax_cross_entropy(logits, labels);
        let score = g.slice(logits, 1, 0, 1);
        let score = g.reshape(score, []);
        let metric = if area { g.auc(score, labels) } else { g.accuracy(logits, labels) };
        g.finish(loss, &[("metric", metric)]).unwrap()
    }

    /// Checks that cheap metrics are computed in every step and costly ones are not (A). A layer that the
    /// loss needs anyway adds no cost to a metric (B).
    #[test]
    fn cheap_metrics_are_computed_in_every_step() {
        for (inputs, classes, batch) in [(784, 10, 64), (784, 10, 1), (4, 2, 8), (512, 1000, 256)] {
            assert_eq!(usual_every(&classifier(inputs, classes, false), batch), 1, "{inputs}, {classes}");
        }
        assert_eq!(usual_every(&classifier(4, 2, true), 8), COSTLY_EVERY);
        assert_eq!(usual_every(&classifier(784, 512, true), 64), 1);
        // A softmax over many classes is most of the step, and the accuracy reads as much as it does.
        assert_eq!(usual_every(&classifier(2, 4096, false), 64), COSTLY_EVERY);
    }

    #[test]
    fn what_the_loss_needs_costs_no_metric_anything() {
        let mut g = GraphBuilder::new("loss");
        let x = g.input("features", [1 << 16]);
        let loss = g.l2_loss(x);
        let graph = g.finish(loss, &[("loss", loss)]).unwrap();
        assert_eq!(touched(&graph, &graph.infer(8).unwrap())[1], 0);
        assert_eq!(usual_every(&graph, 8), 1);
    }
}
