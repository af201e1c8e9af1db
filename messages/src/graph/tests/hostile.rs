//! Tests of hostile graphs: the check of any graph returns a result and never panics.

use proptest::prelude::*;

use super::every_op::any_op;
use super::*;
use crate::id::{NodeId, VariableId};
use crate::tensor::{DType, Shape, TensorSpec};
use crate::variable::VariableSpec;

/// Draws a node of a hostile graph: an operation, and the positions of its input nodes, some of which may
/// not exist.
fn any_node() -> impl Strategy<Value = (Op, Vec<u32>)> {
    (any_op(), prop::collection::vec(0u32..14, 0..6))
}

/// Adds a variable with four axes, an untrained variable with one axis, and the nodes that read them.
fn with_variables(mut graph: GraphSpec) -> GraphSpec {
    for (name, shape, trainable) in [("image", &[2, 3, 3, 4][..], true), ("moving", &[4], false)] {
        let (name, shape, initializer) = (name.to_owned(), Shape(shape.to_vec()), InitializerSpec::Zeros);
        let variable = VariableId(graph.variables.len() as u32);
        let node =
            NodeSpec { name: name.clone(), op: Op::Variable { variable }, inputs: Vec::new(), device: None };
        graph.variables.push(VariableSpec {
            name,
            shape,
            dtype: DType::F32,
            initializer,
            trainable,
            device: None,
        });
        graph.nodes.push(node);
    }
    graph
}

fn replace(graph: &mut GraphSpec, nodes: Vec<(Op, Vec<u32>)>) {
    graph.nodes = nodes
        .into_iter()
        .enumerate()
        .map(|(position, (op, inputs))| NodeSpec {
            name: format!("n{position}"),
            op,
            inputs: inputs.into_iter().map(NodeId).collect(),
            device: None,
        })
        .collect();
}

/// If the graph is valid, checks that its shapes can be inferred and are within the limits, and that
/// inference with another batch size does not panic. If the graph is invalid, checks that the error has
/// fewer than 4096 bytes.
fn check(graph: &GraphSpec, batch: usize) -> Result<(), TestCaseError> {
    match graph.validate(batch) {
        Ok(()) => {
            for tensor in graph.infer(batch).unwrap() {
                prop_assert!(tensor.shape.rank() <= RANK_MAX);
                prop_assert!(tensor.shape.elements() <= TENSOR_ELEMENTS_MAX);
                prop_assert!(batch == 0 || tensor.shape.elements() > 0, "{} is empty", tensor);
            }
            let _ = graph.infer(batch + 1);
        }
        Err(error) => prop_assert!(error.to_string().len() < 4096, "{} bytes", error.to_string().len()),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn any_graph_is_accepted_or_refused(
        nodes in prop::collection::vec(any_node(), 0..8),
        loss in 0u32..9,
        batch in 0usize..5,
    ) {
        let mut graph = with_variables(classifier());
        graph.metrics.clear();
        graph.loss = NodeId(loss);
        replace(&mut graph, nodes);
        check(&graph, batch)?;
    }

    /// Builds a graph of drawn nodes, and leaves out nodes that do not fit. The inputs of the remaining
    /// nodes have unusual shapes. Checks that their operations do not panic.
    #[test]
    fn operations_never_panic_on_the_outputs_of_others(nodes in prop::collection::vec(any_node(), 1..32)) {
        let mut graph = with_variables(classifier());
        graph.metrics.clear();
        for (op, mut inputs) in nodes {
            let (Arity::Exactly(count) | Arity::AtLeast(count)) = op.arity();
            inputs.resize(count, 0);
            let position = graph.nodes.len();
            let inputs = inputs.iter().map(|&input| NodeId(input % position as u32)).collect();
            graph.nodes.push(NodeSpec { name: format!("n{position}"), op, inputs, device: None });
            let kept = graph.validate_links(NodeId(position as u32), &mut Default::default());
            if kept.is_err() || graph.infer(2).is_err() {
                graph.nodes.pop();
            }
        }
        check(&graph, 2)?;
    }

    /// Checks a valid graph in which a single node was changed. Such a graph passes most of the validation,
    /// so this test also reaches the validation's later parts.
    #[test]
    fn any_single_change_is_accepted_or_refused(
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
        check(&graph, 3)?;
    }

    /// Checks that building a graph of drawn nodes never panics, although the builder continues after an
    /// error. If `finish` returns a graph instead of the first error, the graph must be valid.
    #[test]
    fn any_nodes_are_built_or_refused(nodes in prop::collection::vec(any_node(), 0..10)) {
        let mut g = GraphBuilder::new("any");
        let x = g.input("x", [2, 2]);
        let kernel = g.variable("kernel", [2, 2], InitializerSpec::Zeros);
        let mut made = vec![x, kernel];
        for (op, inputs) in nodes {
            let inputs: Vec<NodeId> = inputs.iter().map(|&input| made[input as usize % made.len()]).collect();
            let node = g.push("node", op, &inputs);
            let _ = (g.rank(node), g.example_shape(node), g.l2_loss(node));
            made.push(node);
        }
        let loss = g.l2_loss(*made.last().unwrap());
        if let Ok(graph) = g.finish(loss, &[]) {
            prop_assert!(graph.validate(2).is_ok());
        }
    }
}

#[test]
fn every_error_is_short() {
    let mut graph = classifier();
    let relu = graph.find("relu").unwrap().index();
    let axes = vec![7; 1 << 16];
    for (op, inputs) in [
        (Op::Transpose { axes: axes.clone() }, 1),
        (Op::Reduce { reduction: ReductionOp::Sum, axes: axes.clone(), keep: false }, 1),
        (Op::Reshape { shape: Shape(axes.clone()) }, 1),
        (Op::Reshape { shape: Shape(vec![1; 1 << 16]) }, 1),
        (Op::Concat { axis: 1 }, 1 << 16),
        (Op::Input { example: TensorSpec::f32(Shape(axes.clone())) }, 0),
    ] {
        graph.nodes[relu].op = op;
        graph.nodes[relu].inputs = (0..inputs).map(|input| NodeId(input % 4)).collect();
        let message = graph.validate(2).unwrap_err().to_string();
        assert!(message.len() < 1024, "{} bytes: {}..", message.len(), &message[..200]);
    }
}

#[test]
fn too_many_nodes_are_refused_first() {
    let mut graph = classifier();
    let node = graph.nodes[0].clone();
    graph.nodes.resize(NODES_MAX + 1, node);
    assert!(matches!(graph.validate(2), Err(GraphError::TooMany { what: "nodes", .. })));
}

#[test]
fn too_many_inputs_are_refused_first() {
    // The inputs of each of the two nodes are within the limit; together, they exceed it by one.
    let mut graph = classifier();
    let wide = |inputs, name: &str| NodeSpec {
        name: name.to_owned(),
        op: Op::Concat { axis: 0 },
        inputs: vec![NodeId(0); inputs],
        device: None,
    };
    let others: usize = graph.nodes.iter().map(|node| node.inputs.len()).sum();
    graph.nodes.extend([wide(INPUTS_MAX / 2, "wide"), wide(INPUTS_MAX / 2 - others + 1, "wider")]);
    let message = graph.validate(2).unwrap_err().to_string();
    let expected = format!(
        "the graph has {} inputs of all nodes together, expected at most {INPUTS_MAX}",
        INPUTS_MAX + 1
    );
    assert_eq!(message, expected);
    graph.nodes.last_mut().unwrap().inputs.pop();
    assert!(!graph.validate(2).is_err_and(|error| matches!(error, GraphError::TooMany { .. })));
}
