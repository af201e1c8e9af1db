//! Checks that a run changes no variable, for clients that may only read.

use pushpull_messages::graph::{GraphSpec, Op};
use pushpull_messages::id::NodeId;

use crate::error::SessionError;
use crate::plan::Signature;

/// Checks that no operation that a run needs changes a variable. Other operations of the graph may: they do
/// not run. A variable that does not exist is noticed when it is read.
///
/// # Errors
/// Names the first operation that would change a variable.
pub(crate) fn check_read_only(graph: &GraphSpec, signature: &Signature) -> Result<(), SessionError> {
    let wanted: Vec<NodeId> = signature.fetches.iter().chain(&signature.targets).copied().collect();
    let needed = graph.needed(&wanted);
    let changes = |position: &usize| match &graph.nodes[*position].op {
        Op::Session(op) => needed[*position] && op.changes_variables(),
        _ => false,
    };
    match (0..graph.nodes.len()).find(changes) {
        None => Ok(()),
        Some(position) => {
            let node = graph.label(NodeId(position as u32));
            Err(SessionError::NotAllowed(format!("{node} changes a variable")))
        }
    }
}

#[cfg(test)]
mod tests {
    use pushpull_messages::graph::GraphBuilder;
    use pushpull_messages::optimizer::OptimizerSpec;
    use pushpull_messages::tensor::DType;
    use pushpull_messages::variable::InitializerSpec;

    use super::*;

    #[test]
    fn only_what_runs_must_change_nothing() {
        let mut g = GraphBuilder::new("g");
        let v = g.variable_of("v", [], DType::F32, InitializerSpec::Zeros);
        let one = g.value(1.0f32);
        let sum = g.add(v, one);
        let gradient = g.gradient(sum, v);
        let changed = [
            g.assign_add(v, one),
            g.assign(v, sum),
            g.apply(&OptimizerSpec::sgd(0.1), v, gradient),
            g.initialize(),
        ];
        let behind = changed.map(|node| g.group(&[node]));
        let graph = g.finish_session().unwrap();
        let run = |fetches: &[NodeId], targets: &[NodeId]| {
            let (fetches, targets) = (fetches.to_vec(), targets.to_vec());
            check_read_only(&graph, &Signature { feeds: vec![], fetches, targets })
        };
        run(&[v, sum], &[gradient]).unwrap();
        for node in changed.into_iter().chain(behind) {
            for (fetches, targets) in [([sum, node], vec![]), ([sum, v], vec![node])] {
                let error = run(&fetches, &targets).unwrap_err().to_string();
                assert!(error.contains("changes a variable, and this client has the role read"), "{error}");
            }
        }
    }
}
