//! The graph's own form, and the check of one that comes from outside.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::op::{Arity, Op};
use crate::device::OpDeviceSpec;
use crate::id::{NodeId, VariableId};
use crate::tensor::{DType, Shape, TensorSpec};
use crate::variable::{VARIABLE_ELEMENTS_MAX, VARIABLE_NAME_BYTES_MAX, VariableError, VariableSpec};

/// Most nodes, and most variables, in a graph.
pub const NODES_MAX: usize = 1 << 16;
/// Most inputs of all nodes of a graph together.
pub const INPUTS_MAX: usize = 1 << 18;
/// Most metrics in a graph.
pub const METRICS_MAX: usize = 1024;
/// Most axes of a tensor.
pub const RANK_MAX: usize = 8;
/// Most elements in one node's output.
pub const TENSOR_ELEMENTS_MAX: usize = 1 << 32;

/// A model as data. A node refers only to nodes before it, so there is no cycle, and the order of the list is
/// one in which it can run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphSpec {
    /// What people call the model, such as `mlp`.
    pub name: String,
    /// Everything that lives on the ps tasks: what is trained, and what is not, such as moving averages.
    pub variables: Vec<VariableSpec>,
    /// The operations, inputs first.
    pub nodes: Vec<NodeSpec>,
    /// The scalar that training makes small: a mean over the batch, as the losses are. Of several devices each computes it
    /// for its part of the batch, and what counts is their mean, weighted by the examples.
    pub loss: NodeId,
    /// Scalars that are evaluated beside the loss.
    #[serde(default)]
    pub metrics: Vec<MetricSpec>,
}

/// One operation and what it works on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// Unique in the graph.
    pub name: String,
    /// What it computes.
    pub op: Op,
    /// From the outputs of these nodes.
    #[serde(default)]
    pub inputs: Vec<NodeId>,
    /// Where the user asked it to run, if anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<OpDeviceSpec>,
}

/// A number that is evaluated on the test set, by name, such as `accuracy`: of a scalar the mean over all examples, of
/// [`Op::AucCounts`] the area under the curve. [`MetricKind`] says which.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricSpec {
    /// What people call it.
    pub name: String,
    /// The node that gives it for a batch: an f32 scalar, or counts.
    pub node: NodeId,
}

/// How the values of a metric for several batches become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// The mean, weighted by the examples of each batch.
    Mean,
    /// Counts `[2, bins]` are added, and the area under the curve is taken of their sum.
    Auc {
        /// How many there are.
        bins: usize,
    },
}

/// What is wrong with a graph; names the node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// Too many nodes, inputs, variables or metrics.
    #[error("a graph may have at most {max} {what}, and has {count}")]
    TooMany {
        /// Nodes, inputs, variables or metrics.
        what: &'static str,
        /// The most that there may be.
        max: usize,
        /// How many there are.
        count: usize,
    },
    /// A name that cannot be used.
    #[error(
        "{what} {position} has a name that is empty, longer than {VARIABLE_NAME_BYTES_MAX} bytes, or has control characters"
    )]
    Name {
        /// Node, metric or graph.
        what: &'static str,
        /// Which one.
        position: usize,
    },
    /// Two nodes or two variables of one name.
    #[error("{what} '{name}' is there twice: every name may be used once")]
    DuplicateName {
        /// Node, variable or metric.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A variable is wrong by itself.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// Two layers of one name.
    #[error(
        "layer '{layer}' is there twice: give each layer a name of its own, or use the same layer again to share its variables"
    )]
    DuplicateLayer {
        /// With its scopes.
        layer: String,
    },
    /// A layer is used again where its variables do not fit.
    #[error(
        "layer '{layer}' is used again where variable '{variable}' would have shape {got}, and from its first use it has {expected}"
    )]
    SharedShape {
        /// With its scopes.
        layer: String,
        /// With its scopes.
        variable: String,
        /// From the first use.
        expected: Shape,
        /// What this use needs.
        got: Shape,
    },
    /// A layer cannot take what it was applied to.
    #[error("layer '{layer}' expects {expected}, and got {got}")]
    Layer {
        /// With its scopes.
        layer: String,
        /// What fits.
        expected: String,
        /// What came, for a batch of 2.
        got: String,
    },
    /// A name that no node bears.
    #[error("no node is called '{0}'")]
    UnknownName(String),
    /// A node refers to itself or to a later one: a cycle, or a list in the wrong order.
    #[error(
        "{node} takes node {input} as an input, which does not come before it: a graph has no cycles, and inputs stand first"
    )]
    NotBefore {
        /// The node.
        node: String,
        /// What it refers to.
        input: NodeId,
    },
    /// A node has more or fewer inputs than its operation takes.
    #[error("{node} takes {expected} inputs, and has {got}")]
    Arity {
        /// The node.
        node: String,
        /// What the operation takes.
        expected: Arity,
        /// What is there.
        got: usize,
    },
    /// A node names a variable that is not there.
    #[error("{node} names variable {variable}, and the graph has {variables}")]
    UnknownVariable {
        /// The node.
        node: String,
        /// What it names.
        variable: VariableId,
        /// How many there are.
        variables: usize,
    },
    /// Inputs of the wrong shape or type.
    #[error("{node} expects {expected}, and got {got}")]
    Shape {
        /// The node.
        node: String,
        /// What fits.
        expected: String,
        /// What came.
        got: String,
    },
    /// An output beyond every bound.
    #[error(
        "{node} would give {tensor}, and a tensor may have at most {TENSOR_ELEMENTS_MAX} elements and {RANK_MAX} axes"
    )]
    TooLarge {
        /// The node.
        node: String,
        /// What it would give.
        tensor: TensorSpec,
    },
    /// The loss or a metric is not a scalar of the graph.
    #[error("{what} must be a node that gives an f32 scalar: {got}")]
    NotScalar {
        /// The loss, or the metric's name.
        what: String,
        /// What it is.
        got: String,
    },
    /// A variable that no node reads: its gradient would never be known.
    #[error("variable '{0}' is used by no node")]
    UnusedVariable(String),
    /// A number of an operation that is out of range.
    #[error("{node} has the {what} {got}, expected {expected}")]
    Number {
        /// The node.
        node: String,
        /// Which of its numbers.
        what: &'static str,
        /// What it may be.
        expected: &'static str,
        /// What it is.
        got: String,
    },
    /// A number that is not finite.
    #[error("{node} has the value {value}, which is not finite")]
    NotFinite {
        /// The node.
        node: String,
        /// Its value, as text since NaN compares with nothing.
        value: String,
    },
}

impl GraphSpec {
    /// How messages call a node: its position, operation and name.
    pub fn label(&self, id: NodeId) -> String {
        match self.nodes.get(id.index()) {
            Some(node) => format!("node {id} ({} '{}')", node.op.name(), node.name),
            None => format!("node {id}"),
        }
    }

    /// Checks a graph that may come from anywhere, for batches of `batch` examples.
    ///
    /// # Errors
    /// The first thing that is wrong, with the node's or the variable's name.
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
                        got: format!("{} gives {other}", self.label(node)),
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

    /// A short digest by which two tasks see that they hold the same graph: crc32c of its MessagePack bytes, with the
    /// fields' names, as a field that is left out would make way for the next one.
    pub fn digest(&self) -> u32 {
        crc32c::crc32c(&rmp_serde::to_vec_named(self).expect("plain data encodes"))
    }

    /// How the values of a metric's node for several batches become one.
    pub fn metric_kind(&self, node: NodeId) -> MetricKind {
        match self.nodes[node.index()].op {
            Op::AucCounts { bins } => MetricKind::Auc { bins },
            _ => MetricKind::Mean,
        }
    }

    /// The node of that name.
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
