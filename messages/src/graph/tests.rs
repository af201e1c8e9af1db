//! A graph that is right passes, and one that is wrong in any way is refused with the node named.

use proptest::prelude::*;

use super::*;
use crate::id::{NodeId, VariableId};
use crate::tensor::{Shape, TensorSpec};
use crate::variable::InitializerSpec;

/// 6-4-3, with every operation of a small classifier.
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

#[test]
fn shapes_follow_the_batch() {
    let graph = classifier();
    let of =
        |batch: usize, name: &str| graph.infer(batch).unwrap()[graph.find(name).unwrap().index()].clone();
    assert_eq!(of(5, "features"), TensorSpec::f32([5, 2, 3]));
    assert_eq!(of(5, "labels"), TensorSpec::i32([5]));
    assert_eq!(of(7, "reshape"), TensorSpec::f32([7, 6]));
    assert_eq!(of(7, "relu"), TensorSpec::f32([7, 4]));
    assert_eq!(of(7, "mat_mul_1"), TensorSpec::f32([7, 3]));
    assert_eq!(of(7, "accuracy"), TensorSpec::f32(Shape::scalar()));
}

#[test]
fn a_job_file_says_the_same_graph() {
    let graph = classifier();
    let json = serde_json::to_string(&graph).unwrap();
    assert_eq!(serde_json::from_str::<GraphSpec>(&json).unwrap(), graph);
    let bytes = rmp_serde::to_vec_named(&graph).unwrap();
    assert_eq!(rmp_serde::from_slice::<GraphSpec>(&bytes).unwrap(), graph);
}

#[test]
fn every_fault_is_refused_with_the_node_named() {
    let fault = |change: &dyn Fn(&mut GraphSpec)| {
        let mut graph = classifier();
        change(&mut graph);
        graph.validate(2).expect_err("a fault was taken").to_string()
    };
    let at = |name: &str| classifier().find(name).unwrap().index();
    for (change, expected) in [
        (
            &(|g: &mut GraphSpec| g.nodes[at("relu")].inputs[0] = NodeId(9)) as &dyn Fn(&mut GraphSpec),
            "(relu 'relu') takes node 9",
        ),
        (&|g| g.nodes[at("relu")].inputs[0] = NodeId(at("relu") as u32), "does not come before it"),
        (&|g| g.nodes[at("relu")].inputs.clear(), "(relu 'relu') takes 1 inputs, and has 0"),
        (&|g| g.nodes[at("mat_mul")].inputs.swap(0, 1), "(mat_mul 'mat_mul') expects f32 [m, k] and [k, n]"),
        (&|g| g.nodes[at("reshape")].op = Op::Reshape { shape: [5].into() }, "(reshape 'reshape')"),
        (
            &|g| g.nodes[at("reshape")].op = Op::Reshape { shape: [usize::MAX, 3].into() },
            "(reshape 'reshape')",
        ),
        (
            &|g| g.nodes[at("dense1/bias")].op = Op::Variable { variable: VariableId(7) },
            "(variable 'dense1/bias') names variable 7, and the graph has 3",
        ),
        (&|g| g.nodes[at("relu")].name = "bias_add".into(), "node 'bias_add' is there twice"),
        (&|g| g.nodes[at("relu")].name = "a\nb".into(), "control characters"),
        (&|g| g.variables[1].name = "dense1/kernel".into(), "variable 'dense1/kernel' is there twice"),
        (&|g| g.variables[1].shape = [3].into(), "(bias_add 'bias_add') expects"),
        (&|g| g.variables[1].shape = [0].into(), "dense1/bias"),
        (&|g| g.loss = NodeId(at("relu") as u32), "the loss must be a node that gives an f32 scalar"),
        (&|g| g.loss = NodeId(99), "node 99 is not in the graph"),
        (&|g| g.metrics[0].node = NodeId(0), "metric 'accuracy' must be"),
        (
            &|g| g.nodes[at("features")].op = Op::Input { example: TensorSpec::f32([1 << 31, 3]) },
            "may have at most",
        ),
        (
            &|g| {
                g.variables.push(g.variables[0].clone());
                g.variables[3].name = "unused".into();
            },
            "variable 'unused' is used by no node",
        ),
    ] {
        let message = fault(change);
        assert!(message.contains(expected), "expected '{expected}' in: {message}");
    }
}

#[test]
fn more_nodes_than_the_budget_are_refused_before_anything_is_computed() {
    let mut graph = classifier();
    let node = graph.nodes[0].clone();
    graph.nodes.resize(NODES_MAX + 1, node);
    assert!(matches!(graph.validate(2), Err(GraphError::TooMany { what: "nodes", .. })));
}

fn any_op() -> impl Strategy<Value = Op> {
    let extents = prop::collection::vec(prop_oneof![0usize..5, Just(usize::MAX)], 0..3);
    let shape = extents.prop_map(Shape);
    prop_oneof![
        shape
            .clone()
            .prop_map(|shape| Op::Input { example: TensorSpec { shape, dtype: crate::tensor::DType::F32 } }),
        shape
            .clone()
            .prop_map(|shape| Op::Input { example: TensorSpec { shape, dtype: crate::tensor::DType::I32 } }),
        shape.prop_map(|shape| Op::Reshape { shape }),
        (0u32..4).prop_map(|variable| Op::Variable { variable: VariableId(variable) }),
        any::<f32>().prop_map(|value| Op::Constant { value }),
        any::<(bool, bool)>().prop_map(|(transpose_a, transpose_b)| Op::MatMul { transpose_a, transpose_b }),
        prop::sample::select(vec![
            Op::BiasAdd,
            Op::Relu,
            Op::Add,
            Op::SoftmaxCrossEntropy,
            Op::Accuracy,
            Op::ReluGrad,
            Op::SumRows,
            Op::SoftmaxCrossEntropyGrad,
        ]),
    ]
}

proptest! {
    /// Whatever comes from outside: validation returns, and what it takes can be inferred for any batch.
    #[test]
    fn any_graph_is_taken_or_refused_never_a_panic(
        nodes in prop::collection::vec((any_op(), prop::collection::vec(0u32..8, 0..4)), 0..8),
        loss in 0u32..9,
        batch in 0usize..5,
    ) {
        let mut graph = classifier();
        graph.metrics.clear();
        graph.loss = NodeId(loss);
        graph.nodes = nodes
            .into_iter()
            .enumerate()
            .map(|(position, (op, inputs))| NodeSpec {
                name: format!("n{position}"),
                op,
                inputs: inputs.into_iter().map(NodeId).collect(),
            })
            .collect();
        if graph.validate(batch).is_ok() {
            prop_assert_eq!(graph.infer(batch).unwrap().len(), graph.nodes.len());
        }
    }

    /// The same for one change in a graph that was right, which reaches deeper into the check.
    #[test]
    fn any_single_change_is_taken_or_refused_never_a_panic(
        position in 0usize..12,
        op in any_op(),
        inputs in prop::option::of(prop::collection::vec(0u32..14, 0..4)),
    ) {
        let mut graph = classifier();
        let position = position % graph.nodes.len();
        graph.nodes[position].op = op;
        if let Some(inputs) = inputs {
            graph.nodes[position].inputs = inputs.into_iter().map(NodeId).collect();
        }
        if graph.validate(3).is_ok() {
            prop_assert!(graph.infer(5).is_ok());
        }
    }
}
