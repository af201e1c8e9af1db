//! Tests of hostile graphs of sessions: their check and their inference return a result and never panic.

use proptest::prelude::*;

use super::session_ops::any_op_of_sessions;
use super::*;
use crate::id::{NodeId, VariableId};
use crate::tensor::DType;
use crate::variable::VariableSpec;

/// Returns a graph with a variable of each type, and the nodes that read the variables.
fn variables() -> GraphSpec {
    let mut graph = classifier();
    (graph.nodes, graph.variables, graph.metrics) = (Vec::new(), Vec::new(), Vec::new());
    for (position, dtype) in DType::ALL.into_iter().enumerate() {
        let name = format!("v{position}");
        let op = Op::Variable { variable: VariableId(position as u32) };
        graph.nodes.push(NodeSpec { name: name.clone(), op, inputs: vec![], device: None });
        let (shape, initializer) = ([2, 3].into(), InitializerSpec::Zeros);
        let trainable = true;
        graph.variables.push(VariableSpec { name, shape, dtype, initializer, trainable, device: None });
    }
    graph
}

/// If the graph is valid, checks that the shapes of what a run needs can be inferred or are refused, and that
/// they are within the limits.
fn check(graph: &GraphSpec, of: NodeId, batch: usize) -> Result<(), TestCaseError> {
    if let Err(error) = graph.validate_session() {
        prop_assert!(error.to_string().len() < 4096);
        return Ok(());
    }
    let needed = graph.needed(&[of]);
    match graph.infer_session(batch, &needed) {
        Ok(tensors) => {
            for (tensor, needed) in tensors.iter().zip(needed) {
                prop_assert_eq!(tensor.is_some(), needed);
            }
            for tensor in tensors.into_iter().flatten() {
                prop_assert!(tensor.shape.rank() <= RANK_MAX);
                prop_assert!((1..=TENSOR_ELEMENTS_MAX).contains(&tensor.shape.elements()), "{}", tensor);
            }
        }
        Err(error) => prop_assert!(error.to_string().len() < 4096),
    }
    Ok(())
}

fn any_node() -> impl Strategy<Value = (Op, Vec<u32>)> {
    (any_op_of_sessions(), prop::collection::vec(0u32..20, 0..6))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn any_graph_of_a_session_is_accepted_or_refused(
        nodes in prop::collection::vec(any_node(), 0..6),
        of in 0u32..16,
        batch in 1usize..5,
    ) {
        let mut graph = variables();
        for (op, inputs) in nodes {
            let (name, inputs) = (format!("n{}", graph.nodes.len()), inputs.into_iter().map(NodeId).collect());
            graph.nodes.push(NodeSpec { name, op, inputs, device: None });
        }
        check(&graph, NodeId(of), batch)?;
    }

    /// Builds a graph of drawn nodes, and leaves out nodes that do not fit, so that the remaining nodes have
    /// inputs of all types and of unusual shapes.
    #[test]
    fn session_operations_never_panic_on_outputs(nodes in prop::collection::vec(any_node(), 1..32)) {
        let mut graph = variables();
        let mut tensors = graph.infer(2).unwrap();
        for (op, mut inputs) in nodes {
            let (Arity::Exactly(count) | Arity::AtLeast(count)) = op.arity();
            inputs.resize(count, 0);
            let position = graph.nodes.len();
            let inputs = inputs.iter().map(|&input| NodeId(input % position as u32)).collect();
            graph.nodes.push(NodeSpec { name: format!("n{position}"), op, inputs, device: None });
            let id = NodeId(position as u32);
            let links = graph.validate_links(id, &mut Default::default());
            match links.and_then(|()| graph.infer_node(id, &tensors, 2)) {
                Ok(tensor) => tensors.push(tensor),
                Err(error) => {
                    prop_assert!(error.to_string().len() < 4096);
                    graph.nodes.pop();
                }
            }
        }
        prop_assert!(graph.validate_session().is_ok());
        check(&graph, NodeId(graph.nodes.len() as u32 - 1), 2)?;
        check(&graph, NodeId(graph.nodes.len() as u32 - 1), 3)?;
    }

    /// Checks that building a graph of drawn nodes never panics, and that a graph that is returned is valid.
    #[test]
    fn any_nodes_of_a_session_are_built_or_refused(nodes in prop::collection::vec(any_node(), 0..10)) {
        let mut g = GraphBuilder::new("any");
        let x = g.input("x", [2, 2]);
        let kernel = g.variable("kernel", [2, 2], InitializerSpec::Zeros);
        let mut made = vec![x, kernel];
        for (op, inputs) in nodes {
            let inputs: Vec<NodeId> = inputs.iter().map(|&input| made[input as usize % made.len()]).collect();
            made.push(g.push("node", op, &inputs));
        }
        let last = *made.last().unwrap();
        made.push(g.add_n(&[last, kernel]));
        made.push(g.assign(kernel, last));
        let _ = g.gradients(last);
        made.push(g.initialize());
        made.push(g.group(&made));
        if let Ok(graph) = g.finish_session() {
            prop_assert!(graph.validate_session().is_ok());
            prop_assert!(graph.infer(2).is_ok());
        }
    }
}
