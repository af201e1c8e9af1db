//! The graph spec, and the check of a graph that may be invalid or hostile.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::error::GraphError;
use super::limits::{
    GRAPH_SUMMARIES_MAX, INPUTS_MAX, METRICS_MAX, NODES_MAX, OUTPUTS_MAX, SUMMARY_NAME_BYTES_MAX,
    SUMMARY_TENSOR_BYTES_MAX, SUMMARY_TENSORS_BYTES_MAX,
};
use super::op::Op;
use crate::device::OpDeviceSpec;
use crate::id::{JobName, NodeId};
use crate::tensor::{DType, Shape, TensorSpec};
use crate::variable::{VARIABLE_ELEMENTS_MAX, VARIABLE_NAME_BYTES_MAX, VariableError, VariableSpec};

/// A graph: a model as data. Each node refers only to earlier nodes, so the graph has no cycles and can run
/// in the order of the list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphSpec {
    /// The model's name, such as `mlp`.
    pub name: String,
    /// The variables of the model, which are stored on the ps tasks. Some are not trained, such as the
    /// moving averages of batch normalisation.
    pub variables: Vec<VariableSpec>,
    /// The nodes, in an order in which they can run.
    pub nodes: Vec<NodeSpec>,
    /// The node that computes the loss: the scalar that training minimises, a mean over the batch. With
    /// several devices, each device computes the loss of its part of the batch. The total loss is the mean
    /// of these losses, weighted by the number of examples.
    pub loss: NodeId,
    /// The metrics that are evaluated together with the loss.
    #[serde(default)]
    pub metrics: Vec<MetricSpec>,
    /// The tensors that a prediction returns, such as the scores of each class.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<OutputSpec>,
    /// The tensors that workers plot while they train, if the job writes summaries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub summaries: Vec<GraphSummarySpec>,
}

/// A node of the graph: an operation and its inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// The name of the node, unique in the graph.
    pub name: String,
    /// The operation that the node performs.
    pub op: Op,
    /// The nodes whose outputs are the inputs.
    #[serde(default)]
    pub inputs: Vec<NodeId>,
    /// The device that the user requests for the operation, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<OpDeviceSpec>,
}

/// A metric that is evaluated on the test set, such as `accuracy`. It is the mean of a scalar over all
/// examples, or the area under the ROC curve if the node is an [`Op::AucCounts`]; see [`MetricKind`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricSpec {
    /// The metric's name.
    pub name: String,
    /// The node that computes the metric for one batch: an f32 scalar, or the output of [`Op::AucCounts`].
    pub node: NodeId,
}

/// A tensor that a prediction returns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputSpec {
    /// The output's name.
    pub name: String,
    /// The node that computes the output: an f32 tensor whose first axis is the batch.
    pub node: NodeId,
}

/// A tensor that workers plot while they train.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphSummarySpec {
    /// The tag of the plot.
    pub name: String,
    /// The node that is plotted.
    pub node: NodeId,
    /// How the node is plotted.
    pub kind: GraphSummaryKind,
}

/// How a summary shows its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GraphSummaryKind {
    /// The node is an f32 scalar, which is plotted as a number.
    Scalar,
    /// The distribution of the node's elements, which are f32.
    Histogram,
}

/// How the values of a metric for several batches are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// The mean of the values, weighted by the number of examples in each batch.
    Mean,
    /// The counts, `[2, bins]`, are summed over the batches, and the metric is the area under the ROC curve
    /// of the sums.
    Auc {
        /// The number of bins.
        bins: usize,
    },
}

impl GraphSpec {
    /// Returns a text that identifies a node in errors: its position, operation and name.
    pub fn label(&self, id: NodeId) -> String {
        match self.nodes.get(id.index()) {
            Some(node) => format!("node {id} ({} '{}')", node.op.name(), node.name),
            None => format!("node {id}"),
        }
    }

    /// Checks that a training job can have a graph, which may be hostile, with batches of `batch` examples.
    ///
    /// # Errors
    /// Returns the first fault, with the name of the node or variable.
    pub fn validate(&self, batch: usize) -> Result<(), GraphError> {
        self.validate_parts()?;
        self.variables.iter().try_for_each(VariableSpec::validate_for_job)?;
        let of_sessions = self.nodes.iter().position(|node| matches!(node.op, Op::Session(_)));
        if let Some(position) = of_sessions {
            return Err(GraphError::OfSessions { node: self.label(NodeId(position as u32)) });
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
        self.validate_summaries(&tensors)?;
        self.validate_outputs(batch, &tensors)
    }

    /// Checks the counts and the names of the graph's parts, and each variable on its own.
    pub(super) fn validate_parts(&self) -> Result<(), GraphError> {
        for (what, max, count) in [
            ("nodes", NODES_MAX, self.nodes.len()),
            (
                "inputs of all nodes together",
                INPUTS_MAX,
                self.nodes.iter().map(|node| node.inputs.len()).sum(),
            ),
            ("variables", NODES_MAX, self.variables.len()),
            ("metrics", METRICS_MAX, self.metrics.len()),
            ("outputs", OUTPUTS_MAX, self.outputs.len()),
            ("summaries", GRAPH_SUMMARIES_MAX, self.summaries.len()),
        ] {
            if count > max {
                return Err(GraphError::TooMany { what, max, count });
            }
        }
        unique("graph", [self.name.as_str()])?;
        unique("variable", self.variables.iter().map(|variable| variable.name.as_str()))?;
        unique("node", self.nodes.iter().map(|node| node.name.as_str()))?;
        unique("metric", self.metrics.iter().map(|metric| metric.name.as_str()))?;
        unique("output", self.outputs.iter().map(|output| output.name.as_str()))?;
        unique("summary", self.summaries.iter().map(|summary| summary.name.as_str()))?;
        let mut elements = 0usize;
        for variable in &self.variables {
            variable.validate()?;
            elements = elements.saturating_add(variable.shape.elements());
            if elements > VARIABLE_ELEMENTS_MAX {
                let (name, shape) = (variable.name.clone(), variable.shape.clone());
                return Err(VariableError::Shape { name, shape }.into());
            }
        }
        Ok(())
    }

    /// Checks that no operation requests a device of another job than `worker`. This check is not part of
    /// [`validate`](Self::validate), because the operations of a session run on tasks of any job.
    ///
    /// # Errors
    /// Returns [`GraphError::NotOnWorker`] with the first such operation.
    pub fn validate_training_devices(&self) -> Result<(), GraphError> {
        for (position, node) in self.nodes.iter().enumerate() {
            if let Some(device) = node.device
                && device.job.is_some_and(|job| job != JobName::Worker)
            {
                let node = self.label(NodeId(position as u32));
                return Err(GraphError::NotOnWorker { node, device });
            }
        }
        Ok(())
    }

    /// Checks that a worker can copy the tensors of all summaries in one step. This check is not part of
    /// [`validate`](Self::validate), because graphs in older checkpoints and models may break this rule.
    ///
    /// # Errors
    /// Returns [`GraphError::LargeSummary`] with the largest summary, or another error if the graph is not
    /// valid for this batch size.
    pub fn validate_summary_sizes(&self, batch: usize) -> Result<(), GraphError> {
        let tensors = self.infer(batch)?;
        let (mut all, mut largest) = (0u64, (0, ""));
        for GraphSummarySpec { name, node, .. } in &self.summaries {
            let elements = tensors.get(node.index()).map_or(0, |tensor| tensor.shape.elements());
            let bytes = (elements as u64).saturating_mul(size_of::<f32>() as u64);
            (all, largest) = (all.saturating_add(bytes), largest.max((bytes, name)));
        }
        let (bytes, summary) = largest;
        if bytes > SUMMARY_TENSOR_BYTES_MAX || all > SUMMARY_TENSORS_BYTES_MAX {
            return Err(GraphError::LargeSummary { summary: summary.to_owned(), bytes });
        }
        Ok(())
    }

    /// Checks the names and the nodes of the summaries. `tensors` has the shape and type of every node's
    /// output for one batch.
    fn validate_summaries(&self, tensors: &[TensorSpec]) -> Result<(), GraphError> {
        for GraphSummarySpec { name, node, kind } in &self.summaries {
            if name.len() > SUMMARY_NAME_BYTES_MAX {
                return Err(GraphError::SummaryName { name: name.clone() });
            }
            let got = match tensors.get(node.index()) {
                Some(TensorSpec { shape, dtype: DType::F32 })
                    if *kind == GraphSummaryKind::Histogram || shape.rank() == 0 =>
                {
                    continue;
                }
                Some(other) => format!("{} returns {other}", self.label(*node)),
                None => format!("{} is not in the graph", self.label(*node)),
            };
            return Err(match kind {
                GraphSummaryKind::Scalar => GraphError::NotScalar { what: format!("summary '{name}'"), got },
                GraphSummaryKind::Histogram => GraphError::NotFloats { summary: name.clone(), got },
            });
        }
        Ok(())
    }

    /// Checks that each output has one row for each example, and that the shape of a row does not depend on
    /// the number of examples. `tensors` has the shape and type of every node's output for a batch of
    /// `batch` examples.
    fn validate_outputs(&self, batch: usize, tensors: &[TensorSpec]) -> Result<(), GraphError> {
        if self.outputs.is_empty() {
            return Ok(());
        }
        // A graph may fit only one batch size. Its outputs are then checked for this size alone.
        let larger = self.infer(batch + 1).ok();
        for OutputSpec { name, node } in &self.outputs {
            let grows = |shape: &Shape| match larger.as_ref().and_then(|larger| larger.get(node.index())) {
                Some(more) => {
                    more.shape.0.first() == Some(&(batch + 1)) && more.shape.0.get(1..) == shape.0.get(1..)
                }
                None => true,
            };
            let got = match tensors.get(node.index()) {
                Some(TensorSpec { shape, dtype: DType::F32 })
                    if shape.0.first() == Some(&batch) && grows(shape) =>
                {
                    continue;
                }
                Some(other) => format!("{} returns {other}", self.label(*node)),
                None => format!("{} is not in the graph", self.label(*node)),
            };
            return Err(GraphError::NotOfExamples { output: name.clone(), got });
        }
        Ok(())
    }

    /// Returns the part of a valid graph that its outputs need, without loss, metrics and summaries. The
    /// nodes keep their names, and the variables keep their names and ids. A prediction runs this part, so it
    /// needs no labels.
    #[must_use]
    pub fn prediction(&self) -> Self {
        let outputs: Vec<NodeId> = self.outputs.iter().map(|output| output.node).collect();
        let needed = self.needed(&outputs);
        let mut ids = vec![NodeId(0); self.nodes.len()];
        let mut nodes = Vec::new();
        for (position, node) in self.nodes.iter().enumerate().filter(|(position, _)| needed[*position]) {
            ids[position] = NodeId(nodes.len() as u32);
            // The inputs of a node come before it, so their new ids are known.
            let inputs = node.inputs.iter().map(|input| ids[input.index()]).collect();
            nodes.push(NodeSpec { inputs, ..node.clone() });
        }
        let output = |output: &OutputSpec| OutputSpec { node: ids[output.node.index()], ..output.clone() };
        let outputs = self.outputs.iter().map(output).collect();
        let (name, variables) = (self.name.clone(), self.variables.clone());
        let (metrics, summaries) = (Vec::new(), Vec::new());
        Self { name, variables, nodes, loss: NodeId(0), metrics, outputs, summaries }
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
            Op::Session(op) => self.validate_session_op(id, op),
            _ => Ok(()),
        }
    }

    /// Returns the digest by which tasks check that their graphs are equal: the crc32c of the graph's
    /// MessagePack bytes. The bytes include the names of fields, so an omitted field cannot be confused with
    /// the field after it.
    pub fn digest(&self) -> u32 {
        crc32c::crc32c(&rmp_serde::to_vec_named(self).expect("plain data encodes"))
    }

    /// Returns how the metric's values for several batches are combined. `node` is the metric's node.
    pub fn metric_kind(&self, node: NodeId) -> MetricKind {
        match self.nodes[node.index()].op {
            Op::AucCounts { bins } => MetricKind::Auc { bins },
            _ => MetricKind::Mean,
        }
    }

    /// Returns the node called `name`, or `None` if there is none.
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
