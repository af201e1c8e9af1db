//! A graph in a session: the check of a graph that may be hostile, which parts of it a run needs, and the
//! shapes of these parts. Unlike a training job, a session runs any nodes and needs no loss or metrics.

use std::collections::BTreeSet;

use super::error::GraphError;
use super::limits::CONSTANT_BYTES_MAX;
use super::op::Op;
use super::session_op::SessionOp;
use super::spec::GraphSpec;
use crate::id::NodeId;
use crate::tensor::{Shape, TensorSpec};

impl GraphSpec {
    /// Checks that a session can hold a graph, which may be hostile: its counts, names, variables, links and
    /// the settings of the operations of sessions. Does not check shapes, because they depend on the batch
    /// size and on the nodes that a run needs; [`infer_session`](Self::infer_session) checks them. A session
    /// does not read the loss, the metrics, the outputs and the summaries, so they may be left out.
    ///
    /// # Errors
    /// Returns the first fault, with the name of the node or variable.
    pub fn validate_session(&self) -> Result<(), GraphError> {
        self.validate_parts()?;
        let (mut used, mut bytes) = (BTreeSet::new(), 0usize);
        for position in 0..self.nodes.len() {
            self.validate_links(NodeId(position as u32), &mut used)?;
            if let Op::Session(SessionOp::Constant { value }) = &self.nodes[position].op {
                bytes = bytes.saturating_add(value.bytes_len());
            }
        }
        match bytes {
            0..=CONSTANT_BYTES_MAX => Ok(()),
            bytes => Err(GraphError::LargeConstants { bytes }),
        }
    }

    /// Checks what a node's operation says about variables and optimizers.
    pub(super) fn validate_session_op(&self, id: NodeId, op: &SessionOp) -> Result<(), GraphError> {
        if let Some(variable) = op.variable().filter(|variable| variable.index() >= self.variables.len()) {
            let (node, variables) = (self.label(id), self.variables.len());
            return Err(GraphError::UnknownVariable { node, variable, variables });
        }
        match op {
            SessionOp::Apply { optimizer, .. } => optimizer
                .validate()
                .map_err(|error| GraphError::Optimizer { node: self.label(id), error: error.to_string() }),
            _ => Ok(()),
        }
    }

    /// Returns for each node whether it is one of these nodes, or one of these nodes needs it directly or
    /// through others. Nodes that do not exist are ignored. The links of the graph must be valid.
    pub fn needed(&self, of: &[NodeId]) -> Vec<bool> {
        let mut needed = vec![false; self.nodes.len()];
        for node in of {
            if let Some(needed) = needed.get_mut(node.index()) {
                *needed = true;
            }
        }
        // The inputs of a node come before it, so one pass suffices.
        for position in (0..self.nodes.len()).rev() {
            if needed[position] {
                self.nodes[position].inputs.iter().for_each(|input| needed[input.index()] = true);
            }
        }
        needed
    }

    /// Returns the shape and type of the output of each node that a run of a session needs, and `None` for
    /// the other nodes, which need not fit the batch size. `batch` must be at least 1, and is the number of
    /// examples that the run feeds to each [`Op::Input`]. `needed` must be the result of
    /// [`needed`](Self::needed). The graph must have passed [`validate_session`](Self::validate_session).
    ///
    /// # Errors
    /// If the inputs of a needed node do not fit its operation; the error names the first such node.
    ///
    /// # Panics
    /// If `needed` lacks an input of a needed node.
    pub fn infer_session(
        &self,
        batch: usize,
        needed: &[bool],
    ) -> Result<Vec<Option<TensorSpec>>, GraphError> {
        // The outputs of other nodes are stored as scalars, which no needed node reads.
        let mut tensors = vec![TensorSpec::f32(Shape::scalar()); self.nodes.len()];
        for (position, node) in self.nodes.iter().enumerate().filter(|(position, _)| needed[*position]) {
            let inputs_needed = node.inputs.iter().all(|input| needed[input.index()]);
            assert!(inputs_needed, "the inputs of node {position} are needed, too");
            tensors[position] = self.infer_node(NodeId(position as u32), &tensors, batch)?;
        }
        Ok(tensors.into_iter().zip(needed).map(|(tensor, needed)| needed.then_some(tensor)).collect())
    }
}
