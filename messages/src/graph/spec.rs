//! The graph spec, and the check of a graph from outside. Does not know how a graph is built or run.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::op::{Arity, Op};
use crate::device::OpDeviceSpec;
use crate::id::{NodeId, VariableId};
use crate::tensor::{DType, Shape, TensorSpec};
use crate::variable::{VARIABLE_ELEMENTS_MAX, VARIABLE_NAME_BYTES_MAX, VariableError, VariableSpec};

/// The most nodes, and the most variables, in a graph.
pub const NODES_MAX: usize = 1 << 16;
/// The most inputs of all nodes of a graph together.
pub const INPUTS_MAX: usize = 1 << 18;
/// The most metrics in a graph.
pub const METRICS_MAX: usize = 1024;
/// The most axes of a tensor.
pub const RANK_MAX: usize = 8;
/// The most elements in one node's output.
pub const TENSOR_ELEMENTS_MAX: usize = 1 << 32;

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

/// A fault in a graph; the error names the node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// The graph has too many nodes, inputs, variables or metrics.
    #[error("the graph has {count} {what}, expected at most {max}")]
    TooMany {
        /// Nodes, inputs, variables or metrics.
        what: &'static str,
        /// The largest count.
        max: usize,
        /// The count found.
        count: usize,
    },
    /// A name is empty, too long, or has control characters.
    #[error(
        "{what} {position} has a name that is empty, longer than {VARIABLE_NAME_BYTES_MAX} bytes, or has control characters"
    )]
    Name {
        /// Node, metric, variable or graph.
        what: &'static str,
        /// The position in its list.
        position: usize,
    },
    /// Two nodes, variables or metrics have one name.
    #[error("{what} '{name}' is defined twice, expected every name once")]
    DuplicateName {
        /// Node, variable or metric.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A variable is invalid by itself.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// Two layers have one name.
    #[error(
        "layer '{layer}' is defined twice: give each layer a name of its own, or use the same layer again to share its variables"
    )]
    DuplicateLayer {
        /// The layer, with its scopes.
        layer: String,
    },
    /// A second use of a layer does not fit its variables.
    #[error(
        "layer '{layer}' is used again where variable '{variable}' would have shape {got}, expected {expected} as in its first use"
    )]
    SharedShape {
        /// The layer, with its scopes.
        layer: String,
        /// The variable, with its scopes.
        variable: String,
        /// The shape in the first use.
        expected: Shape,
        /// The shape that this use needs.
        got: Shape,
    },
    /// A layer cannot take the tensors to which it was applied.
    #[error("layer '{layer}' expects {expected}, got {got}")]
    Layer {
        /// The layer, with its scopes.
        layer: String,
        /// The tensors that fit.
        expected: String,
        /// The tensors found, for a batch of 2.
        got: String,
    },
    /// No node has the name.
    #[error("no node is called '{0}'")]
    UnknownName(String),
    /// A node refers to itself or to a later one: a cycle, or a list in the wrong order.
    #[error(
        "{node} takes node {input} as an input, which does not come before it, expected inputs first and no cycles"
    )]
    NotBefore {
        /// The node.
        node: String,
        /// The node to which it refers.
        input: NodeId,
    },
    /// A node has more or fewer inputs than its operation takes.
    #[error("{node} has {got} inputs, expected {expected}")]
    Arity {
        /// The node.
        node: String,
        /// The number that the operation takes.
        expected: Arity,
        /// The number found.
        got: usize,
    },
    /// A node names an unknown variable.
    #[error("{node} names variable {variable}, but the graph has {variables}")]
    UnknownVariable {
        /// The node.
        node: String,
        /// The unknown variable.
        variable: VariableId,
        /// The number of variables in the graph.
        variables: usize,
    },
    /// A node's inputs have the wrong shape or type.
    #[error("{node} expects {expected}, got {got}")]
    Shape {
        /// The node.
        node: String,
        /// The inputs that fit.
        expected: String,
        /// The inputs found.
        got: String,
    },
    /// A node's output is too large.
    #[error(
        "{node} would return {tensor}, expected at most {TENSOR_ELEMENTS_MAX} elements and {RANK_MAX} axes"
    )]
    TooLarge {
        /// The node.
        node: String,
        /// Its output.
        tensor: TensorSpec,
    },
    /// The loss or a metric is not a scalar of the graph.
    #[error("{what} must be a node that returns an f32 scalar: {got}")]
    NotScalar {
        /// The loss, or the metric's name.
        what: String,
        /// The output found.
        got: String,
    },
    /// No node reads a variable, so that it would have no gradient.
    #[error("variable '{0}' is not used by any node: use it or remove it")]
    UnusedVariable(String),
    /// A number of an operation is out of range.
    #[error("{node} has the {what} {got}, expected {expected}")]
    Number {
        /// The node.
        node: String,
        /// The number's name.
        what: &'static str,
        /// The allowed values.
        expected: &'static str,
        /// The value found.
        got: String,
    },
    /// A constant is not finite.
    #[error("{node} has the value {value}, expected a finite number")]
    NotFinite {
        /// The node.
        node: String,
        /// The value, as text because NaN does not equal itself.
        value: String,
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
    /// The first fault, with the node's or the variable's name.
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
