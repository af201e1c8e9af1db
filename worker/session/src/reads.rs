//! Checks that a graph reads no variable again after an operation that changes it. A run reads each variable
//! once, so a later read would give the value from before the change.

use pushpull_messages::graph::{GraphSpec, Op};
use pushpull_messages::id::NodeId;

use crate::error::SessionError;

/// Checks the reads of all variables. The graph must be valid.
///
/// # Errors
/// Returns the first read that comes after a change of the same variable.
pub(crate) fn check_reads(graph: &GraphSpec) -> Result<(), SessionError> {
    let mut changed_by: Vec<Option<NodeId>> = vec![None; graph.variables.len()];
    for (position, node) in graph.nodes.iter().enumerate() {
        let id = NodeId(position as u32);
        match &node.op {
            Op::Variable { variable } => {
                if let Some(change) = changed_by[variable.index()] {
                    let (node, change) = (graph.label(id), graph.label(change));
                    return Err(SessionError::ReadAgain { node, change });
                }
            }
            Op::Session(op) if op.changes_variables() => {
                let variable = op.variable().expect("an operation that changes a variable names it");
                changed_by[variable.index()].get_or_insert(id);
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use pushpull_messages::graph::GraphBuilder;
    use pushpull_messages::id::VariableId;
    use pushpull_messages::variable::InitializerSpec;

    use super::*;

    #[test]
    fn a_variable_is_read_before_it_changes() {
        let mut g = GraphBuilder::new("g");
        let v = g.variable("v", [], InitializerSpec::Zeros);
        let again = g.push("again", Op::Variable { variable: VariableId(0) }, &[]);
        let w = g.variable("w", [], InitializerSpec::Zeros);
        g.assign(w, again);
        g.assign(v, w);
        let mut graph = g.finish_session().unwrap();
        check_reads(&graph).unwrap();
        let mut late = graph.nodes[again.index()].clone();
        late.name = "late".into();
        graph.nodes.push(late);
        assert_eq!(
            check_reads(&graph).unwrap_err().to_string(),
            "node 5 (variable 'late') reads its variable after node 4 (assign 'assign_1') changes it: read it before, \
             or use the value that the change returns"
        );
    }
}
