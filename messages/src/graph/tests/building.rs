//! Tests of the builder: names, scopes, layers that share their variables, and errors that `finish` reports.

use super::*;
use crate::id::NodeId;
use crate::tensor::{Shape, TensorSpec};

fn names(graph: &GraphSpec) -> Vec<&str> {
    graph.variables.iter().map(|variable| variable.name.as_str()).collect()
}

/// Builds a layer that multiplies `x` by a kernel.
fn layer(g: &mut GraphBuilder, name: &str, id: LayerId, x: NodeId, units: usize) -> NodeId {
    g.layer(name, id, |g| {
        let width = g.example_shape(x).map_or(1, |shape| shape.0[0]);
        let kernel = g.variable("kernel", [width, units], InitializerSpec::Zeros);
        g.matmul(x, kernel)
    })
}

fn finish(mut g: GraphBuilder, x: NodeId) -> Result<GraphSpec, String> {
    let loss = g.l2_loss(x);
    g.finish(loss, &[]).map_err(|error| error.to_string())
}

#[test]
fn summaries_have_names_of_their_own() {
    let mut g = GraphBuilder::new("plots");
    let (x, labels) = (g.input("x", [3]), g.labels("labels"));
    let id = LayerId::new();
    let twice = |g: &mut GraphBuilder, x| {
        g.layer("dense", id, |g| {
            let kernel = g.variable("kernel", [3, 3], InitializerSpec::Zeros);
            g.summary_histogram("kernel", kernel);
            g.matmul(x, kernel)
        })
    };
    let y = twice(&mut g, x);
    let y = twice(&mut g, y);
    let loss = g.l2_loss(y);
    g.summary_scalar("loss", loss);
    let graph = g.finish(loss, &[]).unwrap();
    let summaries: Vec<_> =
        graph.summaries.iter().map(|summary| (summary.name.as_str(), summary.kind)).collect();
    let (scalar, histogram) = (GraphSummaryKind::Scalar, GraphSummaryKind::Histogram);
    assert_eq!(summaries, [("dense/kernel", histogram), ("dense/kernel_1", histogram), ("loss", scalar)]);
    assert!(graph.prediction().summaries.is_empty());
    let with = |name: &str, node, kind| {
        let summary = GraphSummarySpec { name: name.into(), node, kind };
        GraphSpec { summaries: vec![summary], ..graph.clone() }.validate(2).unwrap_err().to_string()
    };
    assert!(with("a", y, scalar).starts_with("summary 'a' must be a node that returns an f32 scalar"));
    assert!(with("a", labels, histogram).contains("'a' must be of a node that returns f32: node 1"));
    assert!(with("a", NodeId(99), histogram).contains("is not in the graph"));
    assert!(with(&"a".repeat(225), loss, scalar).contains("225 bytes, expected at most 224"));
    assert!(with("", loss, scalar).contains("summary 0 has an invalid name"));
    let many = (0..=GRAPH_SUMMARIES_MAX).map(|at| GraphSummarySpec {
        name: at.to_string(),
        node: loss,
        kind: scalar,
    });
    let error = GraphSpec { summaries: many.collect(), ..graph.clone() }.validate(2).unwrap_err().to_string();
    assert_eq!(error, "the graph has 257 summaries, expected at most 256");
    let json = serde_json::to_string(&graph).unwrap();
    assert_eq!(serde_json::from_str::<GraphSpec>(&json).unwrap(), graph);
}

#[test]
fn a_summary_of_too_large_a_tensor_is_named() {
    let mut g = GraphBuilder::new("plots");
    let x = g.input("x", [1 << 20]);
    let small = g.reduce(crate::graph::ReductionOp::Mean, x, &[1], false);
    (0..7).for_each(|at| g.summary_histogram(&format!("inputs{at}"), x));
    g.summary_histogram("means", small);
    let graph = finish(g, small).unwrap();
    // One example takes 4 MiB.
    graph.validate_summary_sizes(9).unwrap();
    let error = |batch| graph.validate_summary_sizes(batch).unwrap_err().to_string();
    assert!(error(17).contains("summary 'inputs6' reads 71303168 bytes"), "{}", error(17));
    let all = error(10);
    assert!(all.contains("reads 41943040 bytes") && all.contains("268435456 for all"), "{all}");
    // Older checkpoints and models may have such summaries, and must stay readable.
    graph.validate(17).unwrap();
}

#[test]
fn scopes_prefix_names_until_they_end() {
    let mut g = GraphBuilder::new("scopes");
    let x = g.input("x", [3]);
    let x = g.scope("outer", |g| {
        let kernel = g.variable("kernel", [3, 3], InitializerSpec::Zeros);
        let x = g.matmul(x, kernel);
        g.scope("inner", |g| {
            let bias = g.variable("bias", [3], InitializerSpec::Zeros);
            assert_eq!(g.named("bias"), bias);
            g.bias_add(x, bias)
        })
    });
    let (kernel, bias) = (g.named("outer/kernel"), g.named("outer/inner/bias"));
    assert_ne!(kernel, bias);
    let x = g.relu(x);
    let graph = finish(g, x).unwrap();
    assert_eq!(names(&graph), ["outer/kernel", "outer/inner/bias"]);
    for name in ["outer/mat_mul", "outer/inner/bias_add", "relu"] {
        assert!(graph.find(name).is_some(), "no {name}");
    }
}

#[test]
fn an_input_names_a_column_in_any_scope() {
    let mut g = GraphBuilder::new("columns");
    let loss = g.scope("model", |g| {
        let features = g.input("features", [3]);
        let (words, labels) = (g.ids("words", [4]), g.labels("labels"));
        g.layer("classifier", LayerId::new(), |g| {
            let more = g.input("more", [3]);
            let table = g.variable("table", [9, 3], InitializerSpec::Zeros);
            let words = g.embedding(table, words);
            let words = g.reduce(ReductionOp::Sum, words, &[1], false);
            let sum = g.add(features, more);
            let logits = g.add(sum, words);
            g.softmax_cross_entropy(logits, labels)
        })
    });
    let graph = g.finish(loss, &[]).unwrap();
    let inputs = graph.nodes.iter().filter(|node| matches!(node.op, Op::Input { .. }));
    let inputs: Vec<&str> = inputs.map(|node| node.name.as_str()).collect();
    assert_eq!(inputs, ["features", "words", "labels", "more"]);
    assert_eq!(names(&graph), ["model/classifier/table"]);
}

#[test]
fn operations_of_one_name_are_numbered() {
    let mut g = GraphBuilder::new("numbers");
    let x = g.input("x", [3]);
    let first = g.relu(x);
    let second = g.relu(first);
    let third = g.relu(second);
    assert_eq!([g.named("relu"), g.named("relu_1"), g.named("relu_2")], [first, second, third]);
    finish(g, third).unwrap();
}

#[test]
fn variables_and_inputs_of_one_name_are_refused() {
    let mut g = GraphBuilder::new("twice");
    let x = g.input("x", [3]);
    let _ = g.input("x", [3]);
    assert!(finish(g, x).unwrap_err().contains("node 'x' is defined twice"));
    let mut g = GraphBuilder::new("twice");
    let first = g.variable("kernel", [3], InitializerSpec::Zeros);
    let second = g.variable("kernel", [3], InitializerSpec::Zeros);
    let sum = g.add(first, second);
    assert!(finish(g, sum).unwrap_err().contains("variable 'kernel' is defined twice"));
}

#[test]
fn an_unknown_name_is_an_error() {
    let mut g = GraphBuilder::new("nowhere");
    let x = g.input("x", [3]);
    let y = g.scope("here", |g| g.named("x"));
    let sum = g.add(x, y);
    assert_eq!(finish(g, sum).unwrap_err(), "no node is called 'here/x'");
}

#[test]
fn a_layer_used_again_shares_its_variables() {
    let mut g = GraphBuilder::new("shared");
    let x = g.input("x", [3]);
    let id = LayerId::new();
    let once = layer(&mut g, "square", id, x, 3);
    let twice = layer(&mut g, "square", id, once, 3);
    let graph = finish(g, twice).unwrap();
    assert_eq!(names(&graph), ["square/kernel"]);
    let products = graph.nodes.iter().filter(|node| matches!(node.op, Op::MatMul { .. }));
    let kernels: Vec<NodeId> = products.map(|node| node.inputs[1]).collect();
    assert_eq!(kernels.len(), 2);
    assert_eq!(kernels[0], kernels[1]);
}

#[test]
fn nested_layers_are_shared_with_their_layer() {
    let (outer, inner) = (LayerId::new(), LayerId::new());
    let mut g = GraphBuilder::new("nested");
    let mut x = g.input("x", [3]);
    for _ in 0..2 {
        x = g.layer("outer", outer, |g| {
            let x = layer(g, "inner", inner, x, 3);
            let scale = g.variable("scale", [3], InitializerSpec::Constant { value: 1.0 });
            g.mul(x, scale)
        });
    }
    assert_eq!(names(&finish(g, x).unwrap()), ["outer/inner/kernel", "outer/scale"]);
}

#[test]
fn two_layers_of_one_name_are_refused() {
    let mut g = GraphBuilder::new("two");
    let mut x = g.input("x", [3]);
    for _ in 0..2 {
        x = g.scope("tower", |g| layer(g, "square", LayerId::new(), x, 3));
    }
    let message = finish(g, x).unwrap_err();
    assert!(message.starts_with("layer 'tower/square' is defined twice"), "{message}");
}

#[test]
fn a_layer_in_two_scopes_counts_as_two() {
    let id = LayerId::new();
    let mut g = GraphBuilder::new("scopes");
    let mut x = g.input("x", [3]);
    for scope in ["left", "right"] {
        x = g.scope(scope, |g| layer(g, "square", id, x, 3));
    }
    assert_eq!(names(&finish(g, x).unwrap()), ["left/square/kernel", "right/square/kernel"]);
}

#[test]
fn a_shared_layer_that_does_not_fit_is_refused() {
    let mut g = GraphBuilder::new("misfit");
    let x = g.input("x", [3]);
    let id = LayerId::new();
    let x = layer(&mut g, "wide", id, x, 5);
    let x = layer(&mut g, "wide", id, x, 5);
    let message = finish(g, x).unwrap_err();
    let expected = "layer 'wide' is used again, but variable 'wide/kernel' would have shape [5, 5] here, expected \
                    [3, 5] as in the first use";
    assert_eq!(message, expected);
}

#[test]
fn an_error_names_the_layer_that_refuses() {
    let mut g = GraphBuilder::new("refusal");
    let x = g.input("x", [3]);
    let y = g.scope("block", |g| g.layer("picky", LayerId::new(), |g| g.refuse("f32 [batch, 4]", &[x])));
    assert_eq!(y, x);
    let y = g.reshape(y, [7]);
    assert_eq!(finish(g, y).unwrap_err(), "layer 'block/picky' expects f32 [batch, 4], got f32[2, 3]");
}

#[test]
fn only_the_first_fault_is_reported() {
    let mut g = GraphBuilder::new("first");
    let x = g.input("x", [3]);
    let wrong = g.reshape(x, [4]);
    assert_eq!((g.rank(wrong), g.tensor(wrong), g.example_shape(wrong)), (0, None, None));
    assert_eq!(g.tensor(x), Some(&TensorSpec::f32([2, 3])));
    let worse = g.push("worse", Op::GlobalAveragePool, &[wrong]);
    let message = finish(g, worse).unwrap_err();
    assert!(message.contains("(reshape 'reshape') expects"), "{message}");
}

#[test]
fn an_invalid_variable_is_reported_first() {
    let mut g = GraphBuilder::new("empty");
    let x = g.input("x", [3]);
    let kernel = g.variable("kernel", [3, 0], InitializerSpec::Zeros);
    let product = g.matmul(x, kernel);
    let x = g.reshape(product, [1]);
    let message = finish(g, x).unwrap_err();
    assert!(message.contains("variable 'kernel' has shape [3, 0]"), "{message}");
}

#[test]
fn devices_apply_to_nodes_made_within() {
    let mut g = GraphBuilder::new("devices");
    let device = "/job:ps/task:1".parse().unwrap();
    let a = g.on_device(device, |g| g.variable("a", [1], InitializerSpec::Zeros));
    let b = g.variable("b", [1], InitializerSpec::Zeros);
    let c = g.untrained("c", [1], InitializerSpec::Zeros);
    let sum = g.add(a, b);
    let sum = g.add(sum, c);
    let graph = finish(g, sum).unwrap();
    let told: Vec<_> = graph.variables.iter().map(|v| (v.device, v.trainable)).collect();
    assert_eq!(told, [(Some(device), true), (None, true), (None, false)]);
}

#[test]
fn the_square_of_a_scalar_needs_no_sum() {
    let mut g = GraphBuilder::new("scalar");
    let x = g.variable("x", Shape::scalar(), InitializerSpec::Zeros);
    let graph = finish(g, x).unwrap();
    assert!(!graph.nodes.iter().any(|node| matches!(node.op, Op::Reduce { .. })));
}

#[test]
fn an_output_has_a_row_for_each_example() {
    let with = |name: &str, of: fn(&mut GraphBuilder, NodeId) -> NodeId| {
        let mut g = GraphBuilder::new("outputs");
        let x = g.input("x", [3]);
        let node = of(&mut g, x);
        g.output(name, node);
        finish(g, x)
    };
    let graph = with("scores", |g, x| g.relu(x)).unwrap();
    assert_eq!(graph.outputs[0].name, "scores");
    let read: GraphSpec = serde_json::from_str(&serde_json::to_string(&graph).unwrap()).unwrap();
    assert_eq!(read, graph);
    for (refused, expected) in [
        (with("", |g, x| g.relu(x)), "output 0 has an invalid name"),
        (
            with("sum", |g, x| g.l2_loss(x)),
            "output 'sum' must be a node that returns an f32 tensor whose first",
        ),
        (with("far", |_, _| NodeId(99)), "output 'far' must be a node"),
        (with("labels", |g, _| g.labels("labels")), "output 'labels' must be a node"),
        (with("pairs", |g, x| g.matmul_transposed(x, x, [false, true])), "output 'pairs' must be a node"),
        (
            with("kernel", |g, _| g.variable("kernel", [2, 3], InitializerSpec::Zeros)),
            "output 'kernel' must be a node",
        ),
    ] {
        let error = refused.unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_graph_without_outputs_is_written_as_before() {
    let mut g = GraphBuilder::new("plain");
    let x = g.input("x", [3]);
    let graph = finish(g, x).unwrap();
    assert!(!serde_json::to_string(&graph).unwrap().contains("outputs"));
}

#[test]
fn a_prediction_needs_neither_labels_nor_loss() {
    let mut g = GraphBuilder::new("prediction");
    let x = g.input("x", [3]);
    let labels = g.labels("labels");
    let kernel = g.variable("kernel", [3, 4], InitializerSpec::Zeros);
    let logits = g.matmul(x, kernel);
    g.output("logits", logits);
    let loss = g.softmax_cross_entropy(logits, labels);
    let accuracy = g.accuracy(logits, labels);
    let graph = g.finish(loss, &[("accuracy", accuracy)]).unwrap();
    let part = graph.prediction();
    let names: Vec<&str> = part.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["x", "kernel", &graph.nodes[logits.index()].name]);
    assert_eq!((part.outputs[0].node, part.metrics.len()), (NodeId(2), 0));
    assert_eq!(part.variables, graph.variables);
}

/// Returns the requested devices of all nodes.
fn devices(graph: &GraphSpec) -> Vec<(&str, String)> {
    let text = |node: &'_ NodeSpec| node.device.map_or_else(String::new, |device| device.to_string());
    graph.nodes.iter().map(|node| (node.name.as_str(), text(node))).collect()
}

#[test]
fn device_scopes_are_merged_from_the_outside_in() {
    let mut g = GraphBuilder::new("placed");
    let x = g.input("x", [3]);
    let y = g.device("/job:worker/task:1", |g| {
        let y = g.device("/gpu:0", |g| g.relu(x));
        let y = g.on_op_device("/task:2".parse().unwrap(), |g| g.device("", |g| g.relu(y)));
        g.l2_loss(y)
    });
    let graph = g.finish(y, &[]).unwrap();
    let expected = [
        ("x", ""),
        ("relu", "/job:worker/task:1/device:GPU:0"),
        ("relu_1", "/job:worker/task:2"),
        ("square", "/job:worker/task:1"),
    ];
    let expected = expected.map(|(node, device)| (node, device.to_owned()));
    assert_eq!(devices(&graph)[..expected.len()], expected);
}

#[test]
fn a_device_function_sees_each_node_and_yields_to_inner_scopes() {
    let mut g = GraphBuilder::new("placed");
    let x = g.input("x", [3]);
    // As the field's replica device setter: variables go to the ps tasks in turn.
    let choose = |node: &NodeSpec, graph: &GraphSpec| match node.op {
        Op::Variable { .. } => format!("/job:ps/task:{}", (graph.variables.len() - 1) % 2).parse().unwrap(),
        _ if node.device.is_some() => "/job:seen/gpu:7".parse().unwrap(),
        _ => "/job:worker".parse().unwrap(),
    };
    let loss = g.device("/task:5/cpu:0", |g| {
        g.device_fn(choose, |g| {
            let [a, b, c] = ["a", "b", "c"].map(|name| g.variable(name, [3], InitializerSpec::Zeros));
            let ab = g.add(a, b);
            let xc = g.device("/gpu:1", |g| g.mul(x, c));
            let all = g.add(ab, xc);
            g.l2_loss(all)
        })
    });
    let graph = g.finish(loss, &[]).unwrap();
    let device = |name: &str| devices(&graph).into_iter().find(|(node, _)| *node == name).unwrap().1;
    assert_eq!(device("a"), "/job:ps/task:0/device:CPU:0");
    assert_eq!(device("b"), "/job:ps/task:1/device:CPU:0");
    assert_eq!(device("c"), "/job:ps/task:0/device:CPU:0");
    assert_eq!(device("add"), "/job:worker/task:5/device:CPU:0");
    assert_eq!(device("mul"), "/job:seen/task:5/device:GPU:1");
    assert_eq!(device("x"), "");
}

#[test]
fn an_invalid_device_is_quoted_by_finish() {
    let mut g = GraphBuilder::new("placed");
    let x = g.input("x", [3]);
    let y = g.device("/job:ps/tpu:0", |g| g.relu(x));
    let y = g.device("/also:bad", |g| g.relu(y));
    let error = finish(g, y).unwrap_err();
    assert!(error.starts_with("device '/job:ps/tpu:0' is not valid for an operation"), "{error}");
}
