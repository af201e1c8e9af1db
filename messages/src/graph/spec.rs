//! The graph spec, and the check of a graph from outside. Does not know how a graph is built or run.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::error::GraphError;
use super::limits::{INPUTS_MAX, METRICS_MAX, NODES_MAX};
use super::op::Op;
use crate::device::OpDeviceSpec;
use crate::id::NodeId;
use crate::tensor::{DType, TensorSpec};
use crate::variable::{VARIABLE_ELEMENTS_MAX, VARIABLE_NAME_BYTES_MAX, VariableError, VariableSpec};

/// A model as data. A node refers only to earlier nodes, so the graph has no cycle and can run in the order
/// of the list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphSpec {
    /// The model's name, such as `mlp`.
    pub name: String,
    /// The variables on the ps tasks, both trained ones and others, such as moving averages.
    pub variables: Vec<VariableSpec>,
    /// The operations, in an order in which they can run.
    pub nodes: Vec<NodeSpec>,
    /// The scalar that training minimises: a mean over the batch. With several devices, each computes it for
    /// its part of the batch, and the loss is their mean, weighted by the examples.
    pub loss: NodeId,
    /// The scalars that are evaluated beside the loss.
    #[serde(default)]
    pub metrics: Vec<MetricSpec>,
}

/// An operation and its inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// The name, unique in the graph.
    pub name: String,
    /// The operation.
    pub op: Op,
    /// The nodes whose outputs are the inputs.
    #[serde(default)]
    pub inputs: Vec<NodeId>,
    /// The device requested by the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<OpDeviceSpec>,
}

/// A metric that is evaluated on the test set, such as `accuracy`: the mean of a scalar over all examples, or
/// the area under the curve of [`Op::AucCounts`], as [`MetricKind`] says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricSpec {
    /// The metric's name.
    pub name: String,
    /// The node that computes it for a batch: an f32 scalar, or counts.
    pub node: NodeId,
}

/// The way in which the values of a metric for several batches are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// The mean, weighted by the examples of each batch.
    Mean,
    /// The area under the curve of the sum of the counts, `[2, bins]`.
    Auc {
        /// The number of bins.
        bins: usize,
    },
}

impl GraphSpec {
    /// Returns a node's name for errors: its position, operation and name.
    pub fn label(&self, id: NodeId) -> String {
        match self.nodes.get(id.index()) {
            Some(node) => format!("node {id} ({} '{}')", node.op.name(), node.name),
            None => format!("node {id}"),
        }
    }

    /// Checks an untrusted graph for batches of `batch` examples.
    ///
    /// # Errors
    /// Returns the first fault, with the node's or the variable's name.
    pub fn validate(&self, batch: usize) -> Result<(), GraphError> {
        for (what, max, count) in [
            ("nodes", NODES_MAX, self.nodes.len()),
            (
                "inputs of all nodes together",
                INPUTS_MAX,
                self.nodes.iter().map(|node| node.inputs.len()).sum(),
            ),
            ("variables", NODES_MAX, self.variables.len()),
            ("metrics", METRICS_MAX, self.metrics.len()),
        ] {
            if count > max {
                return Err(GraphError::TooMany { what, max, count });
            }
        }
        unique("graph", [self.name.as_str()])?;
        unique("variable", self.variables.iter().map(|variable| variable.name.as_str()))?;
        unique("node", self.nodes.iter().map(|node| node.name.as_str()))?;
        unique("metric", self.metrics.iter().map(|metric| metric.name.as_str()))?;
        let mut elements = 0usize;
        for variable in &self.variables {
            variable.validate()?;
            elements = elements.saturating_add(variable.shape.elements());
            if elements > VARIABLE_ELEMENTS_MAX {
                let (name, shape) = (variable.name.clone(), variable.shape.clone());
                return Err(VariableError::Shape { name, shape }.into());
            }
        }
        let mut used = BTreeSet::new();
        for position in 0..self.nodes.len() {
            self.validate_links(NodeId(position as u32), &mut used)?;
        }
        if let Some(unused) = (0..self.variables.len()).find(|&position| !used.contains(&position)) {
            return Err(GraphError::UnusedVariable(self.variables[unused].name.clone()));
        }
        let tensors = self.infer(batch)?;
        let scalars = std::iter::once(("the loss".to_owned(), self.loss))
            .chain(self.metrics.iter().map(|metric| (format!("metric '{}'", metric.name), metric.node)));
        for (what, node) in scalars {
            match tensors.get(node.index()) {
                Some(TensorSpec { shape, dtype: DType::F32 }) if shape.rank() == 0 => {}
                Some(_) if node != self.loss && self.metric_kind(node) != MetricKind::Mean => {}
                Some(other) => {
                    return Err(GraphError::NotScalar {
                        what,
                        got: format!("{} returns {other}", self.label(node)),
                    });
                }
                None => {
                    let got = format!("{} is not in the graph", self.label(node));
                    return Err(GraphError::NotScalar { what, got });
                }
            }
        }
        Ok(())
    }

    pub(super) fn validate_links(&self, id: NodeId, used: &mut BTreeSet<usize>) -> Result<(), GraphError> {
        let node = &self.nodes[id.index()];
        if let Some(&input) = node.inputs.iter().find(|&&input| input >= id) {
            return Err(GraphError::NotBefore { node: self.label(id), input });
        }
        let (expected, got) = (node.op.arity(), node.inputs.len());
        if !expected.allows(got) {
            return Err(GraphError::Arity { node: self.label(id), expected, got });
        }
        match &node.op {
            Op::Variable { variable } if variable.index() >= self.variables.len() => {
                Err(GraphError::UnknownVariable {
                    node: self.label(id),
                    variable: *variable,
                    variables: self.variables.len(),
                })
            }
            Op::Variable { variable } => {
                used.insert(variable.index());
                Ok(())
            }
            Op::Constant { value } if !value.is_finite() => {
                Err(GraphError::NotFinite { node: self.label(id), value: value.to_string() })
            }
            _ => Ok(()),
        }
    }

    /// Returns a short digest by which two tasks compare their graphs: the crc32c of the MessagePack bytes.
    /// They include the fields' names, because an omitted field must not be confused with the next one.
    pub fn digest(&self) -> u32 {
        crc32c::crc32c(&rmp_serde::to_vec_named(self).expect("plain data encodes"))
    }

    /// Returns the way in which the values of a metric's node for several batches are combined.
    pub fn metric_kind(&self, node: NodeId) -> MetricKind {
        match self.nodes[node.index()].op {
            Op::AucCounts { bins } => MetricKind::Auc { bins },
            _ => MetricKind::Mean,
        }
    }

    /// Returns the node called `name`.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.nodes.iter().position(|node| node.name == name).map(|position| NodeId(position as u32))
    }
}

fn unique<'a>(what: &'static str, names: impl IntoIterator<Item = &'a str>) -> Result<(), GraphError> {
    let mut seen = BTreeSet::new();
    for (position, name) in names.into_iter().enumerate() {
        if name.is_empty() || name.len() > VARIABLE_NAME_BYTES_MAX || name.chars().any(char::is_control) {
            return Err(GraphError::Name { what, position });
        }
        if !seen.insert(name) {
            return Err(GraphError::DuplicateName { what, name: name.to_owned() });
        }
    }
    Ok(())
}
