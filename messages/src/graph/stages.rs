//! The stages of a job's graph: which worker task of a replica runs each operation and owns each variable.
//! This module must not depend on clusters.

use super::{GraphSpec, Op};
use crate::id::{NodeId, VariableId};

/// The stage of each operation and of each variable of a graph. A replica of the graph has a worker task for
/// each stage. An operation that requests `/job:worker/task:k` is in stage k, any other operation in stage 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stages {
    count: u32,
    nodes: Vec<u32>,
    owners: Vec<u32>,
}

impl Stages {
    /// Returns the number of stages, at least 1. With one stage, every worker runs the whole graph.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Returns the stage of each node, in the order of the graph.
    pub fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// Returns the stage that owns each variable, in the order of the graph.
    pub fn owners(&self) -> &[u32] {
        &self.owners
    }

    /// Returns the variables that a stage owns, in the order of the graph.
    pub fn owned(&self, stage: u32) -> impl Iterator<Item = VariableId> + '_ {
        let all = self.owners.iter().enumerate().filter(move |&(_, &owner)| owner == stage);
        all.map(|(variable, _)| VariableId(variable as u32))
    }

    /// Returns the stage that owns a variable: it pulls the values and pushes the gradients.
    pub fn owner(&self, variable: VariableId) -> u32 {
        self.owners[variable.index()]
    }
}

impl GraphSpec {
    /// Returns the stages of the graph.
    ///
    /// Inputs are in stage 0, which reads the batch. A variable is owned by the stage that its own node
    /// requests, or else by the first stage that reads it, and its node is in that stage.
    pub fn stages(&self) -> Stages {
        let requested = |node: usize| self.nodes[node].device.and_then(|device| device.task);
        let mut nodes: Vec<u32> = (0..self.nodes.len())
            .map(|node| match self.nodes[node].op {
                Op::Input { .. } => 0,
                _ => requested(node).unwrap_or(0),
            })
            .collect();
        let mut owners: Vec<Option<u32>> = vec![None; self.variables.len()];
        let variable = |node: NodeId| match self.nodes.get(node.index()).map(|node| &node.op) {
            Some(Op::Variable { variable }) if variable.index() < self.variables.len() => Some(*variable),
            _ => None,
        };
        let all = || (0..self.nodes.len()).filter_map(|node| Some((node, variable(NodeId(node as u32))?)));
        for (node, variable) in all() {
            let owner = &mut owners[variable.index()];
            *owner = owner.or_else(|| requested(node));
        }
        let mut readers: Vec<Option<u32>> = vec![None; self.variables.len()];
        for (position, node) in self.nodes.iter().enumerate() {
            for variable in node.inputs.iter().filter_map(|&input| variable(input)) {
                let reader = &mut readers[variable.index()];
                *reader = Some(reader.map_or(nodes[position], |first| first.min(nodes[position])));
            }
        }
        let owners: Vec<u32> =
            owners.into_iter().zip(readers).map(|(owner, reader)| owner.or(reader).unwrap_or(0)).collect();
        for (node, variable) in all() {
            nodes[node] = owners[variable.index()];
        }
        let count = nodes.iter().max().map_or(1, |&last| last.saturating_add(1));
        Stages { count, nodes, owners }
    }
}
