//! Builds a graph, one operation at a time. The finished graph has passed the same check as a graph that is
//! received from another task.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use super::device_scopes::{DeviceScope, DeviceScopes};
use super::error::GraphError;
use super::op::Op;
use super::session_op::SessionOp;
use super::spec::{GraphSpec, GraphSummaryKind, GraphSummarySpec, MetricSpec, NodeSpec, OutputSpec};
use crate::device::OpDeviceSpec;
use crate::id::{NodeId, VariableId};
use crate::tensor::{Shape, TensorSpec};
use crate::variable::{DeviceSpec, InitializerSpec, VariableSpec};

/// A builder of graphs.
#[derive(Debug)]
pub struct GraphBuilder {
    graph: GraphSpec,
    /// The id of every node, by the node's name.
    names: BTreeMap<String, NodeId>,
    /// For each name that was requested again, the number that was last appended to make it unique.
    numbers: BTreeMap<String, u32>,
    device: Option<DeviceSpec>,
    device_scopes: DeviceScopes,
    /// The names of the open scopes, each followed by a slash.
    scope: String,
    /// The identity of every layer, by the layer's full name.
    layers: BTreeMap<String, LayerId>,
    /// The full name of the innermost open layer, and whether it was built before.
    layer: Option<(String, Again)>,
    /// The node that reads each variable.
    variable_nodes: Vec<NodeId>,
    /// The shape and type of the output of every node that was added before the first error.
    tensors: Vec<TensorSpec>,
    /// The first error, which [`finish`](Self::finish) returns.
    error: Option<GraphError>,
}

/// The identity of a layer. It distinguishes two layers that have the same name by mistake from one layer
/// that is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerId(u64);

impl LayerId {
    /// Returns an id that is unique in this process.
    #[expect(clippy::new_without_default, reason = "every id is unique, so there is no default")]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Whether this use of a layer shares the variables of an earlier use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    No,
    Yes,
}

/// The batch size for which shapes are inferred while a graph is built. A graph may be valid for some batch
/// sizes only, so the job checks it again for its own batch size.
const BATCH: usize = 2;

impl GraphBuilder {
    /// Starts an empty graph called `name`.
    pub fn new(name: &str) -> Self {
        let graph = GraphSpec {
            name: name.to_owned(),
            variables: Vec::new(),
            nodes: Vec::new(),
            loss: NodeId(0),
            metrics: Vec::new(),
            outputs: Vec::new(),
            summaries: Vec::new(),
        };
        Self {
            graph,
            names: BTreeMap::new(),
            numbers: BTreeMap::new(),
            device: None,
            device_scopes: DeviceScopes::default(),
            scope: String::new(),
            layers: BTreeMap::new(),
            layer: None,
            variable_nodes: Vec::new(),
            tensors: Vec::new(),
            error: None,
        }
    }

    /// Requests `device` for the variables that `build` adds.
    pub fn on_device<T>(&mut self, device: DeviceSpec, build: impl FnOnce(&mut Self) -> T) -> T {
        let outer = self.device.replace(device);
        let built = build(self);
        self.device = outer;
        built
    }

    /// Records `device` as the requested device of the operations that `build` adds. Parts that it leaves out
    /// are those of the device scopes around it.
    ///
    /// In a session, the operations run on this device, and variables live on its task. In a training job,
    /// this does not move any operation: every device of a worker runs its own clone of all operations. The
    /// worker compares each of its devices with the request. If a device does not match and soft placement is
    /// enabled, the worker logs a warning and continues. If soft placement is disabled, the worker refuses
    /// the job.
    pub fn on_op_device<T>(&mut self, device: OpDeviceSpec, build: impl FnOnce(&mut Self) -> T) -> T {
        self.device_scope(DeviceScope::Fixed(device), build)
    }

    /// Does the same as [`on_op_device`](Self::on_op_device) for a text, such as `/job:ps/task:0` or
    /// `/gpu:1`. If the text is invalid, [`finish`](Self::finish) returns an error that quotes it.
    pub fn device<T>(&mut self, text: &str, build: impl FnOnce(&mut Self) -> T) -> T {
        let device = text.parse().unwrap_or_else(|error| {
            self.fail(GraphError::Device(error));
            OpDeviceSpec::default()
        });
        self.on_op_device(device, build)
    }

    /// Calls `choose` for each operation that `build` adds, and records the returned device as the requested
    /// one. The function sees the node before it is added to the graph, with the device that the scopes
    /// within `build` request. Parts of that device take precedence over those that the function returns.
    pub fn device_fn<T>(
        &mut self,
        choose: impl Fn(&NodeSpec, &GraphSpec) -> OpDeviceSpec + Send + Sync + 'static,
        build: impl FnOnce(&mut Self) -> T,
    ) -> T {
        self.device_scope(DeviceScope::Chosen(Box::new(choose)), build)
    }

    fn device_scope<T>(&mut self, scope: DeviceScope, build: impl FnOnce(&mut Self) -> T) -> T {
        self.device_scopes.open(scope);
        let built = build(self);
        self.device_scopes.close();
        built
    }

    /// Puts `name/` before the names of the nodes, variables and summaries that `build` adds. Inputs,
    /// placeholders and outputs keep their names: an input has the name of its column in the data set.
    pub fn scope<T>(&mut self, name: &str, build: impl FnOnce(&mut Self) -> T) -> T {
        let outer = self.scope.len();
        self.scope.push_str(name);
        self.scope.push('/');
        let built = build(self);
        self.scope.truncate(outer);
        built
    }

    /// Builds a layer in a scope with the layer's name. A layer that is built again shares the variables of
    /// its first use. [`finish`](Self::finish) returns an error if another layer has the same name, or if a
    /// later use of the layer needs variables of different shapes.
    pub fn layer<T>(&mut self, name: &str, id: LayerId, build: impl FnOnce(&mut Self) -> T) -> T {
        let layer = format!("{}{name}", self.scope);
        let again = match self.layers.insert(layer.clone(), id) {
            None => Again::No,
            Some(before) if before == id => Again::Yes,
            Some(_) => {
                self.fail(GraphError::DuplicateLayer { layer: layer.clone() });
                Again::Yes
            }
        };
        let outer = self.layer.replace((layer, again));
        let built = self.scope(name, build);
        self.layer = outer;
        built
    }

    /// Adds an input of floats. It is fed by the column `name` of the data set. `example` is the shape of
    /// one example, without the batch.
    pub fn input(&mut self, name: &str, example: impl Into<Shape>) -> NodeId {
        self.push(name, Op::Input { example: TensorSpec::f32(example) }, &[])
    }

    /// Adds an input of integers, such as the ids of words. It is fed by the column `name` of the data set.
    /// `example` is the shape of one example, without the batch.
    pub fn ids(&mut self, name: &str, example: impl Into<Shape>) -> NodeId {
        self.push(name, Op::Input { example: TensorSpec::i32(example) }, &[])
    }

    /// Adds an input of one integer per example. It is fed by the column `name` of the data set.
    pub fn labels(&mut self, name: &str) -> NodeId {
        self.ids(name, Shape::scalar())
    }

    /// Adds a constant scalar.
    pub fn constant(&mut self, value: f32) -> NodeId {
        self.push("constant", Op::Constant { value }, &[])
    }

    /// Adds a variable that is trained.
    pub fn variable(&mut self, name: &str, shape: impl Into<Shape>, initializer: InitializerSpec) -> NodeId {
        self.any_variable(name, TensorSpec::f32(shape), initializer, true)
    }

    /// Adds a variable that is not trained, such as a moving average.
    pub fn untrained(&mut self, name: &str, shape: impl Into<Shape>, initializer: InitializerSpec) -> NodeId {
        self.any_variable(name, TensorSpec::f32(shape), initializer, false)
    }

    pub(super) fn any_variable(
        &mut self,
        name: &str,
        tensor: TensorSpec,
        initializer: InitializerSpec,
        trainable: bool,
    ) -> NodeId {
        let TensorSpec { shape, dtype } = tensor;
        let full = format!("{}{name}", self.scope);
        if let (Some(&before), Some((layer, Again::Yes))) = (self.names.get(&full), &self.layer) {
            if let Op::Variable { variable } = self.graph.nodes[before.index()].op {
                let expected = &self.graph.variables[variable.index()].shape;
                if *expected != shape {
                    let (layer, expected) = (layer.clone(), expected.clone());
                    self.fail(GraphError::SharedShape { layer, variable: full, expected, got: shape });
                }
            }
            return before;
        }
        let id = VariableId(self.graph.variables.len() as u32);
        let variable = VariableSpec { name: full, shape, dtype, initializer, trainable, device: self.device };
        if let Err(error) = variable.validate() {
            self.fail(error.into());
        }
        self.graph.variables.push(variable);
        let node = self.push(name, Op::Variable { variable: id }, &[]);
        self.variable_nodes.push(node);
        node
    }

    /// Returns the node called `name` within the open scopes. Inputs are found only if no scope is open,
    /// because their names have no scope.
    pub fn named(&mut self, name: &str) -> NodeId {
        let full = format!("{}{name}", self.scope);
        match self.names.get(&full) {
            Some(&node) => node,
            None => {
                self.fail(GraphError::UnknownName(full));
                NodeId(0)
            }
        }
    }

    /// Adds an operation of any kind. If the name is already in use, a number is appended to it; for a
    /// variable or an input, [`finish`](Self::finish) returns an error instead.
    pub fn push(&mut self, name: &str, op: Op, inputs: &[NodeId]) -> NodeId {
        let fed = matches!(op, Op::Input { .. } | Op::Session(SessionOp::Placeholder { .. }));
        let by_user = fed || matches!(op, Op::Variable { .. });
        let id = NodeId(self.graph.nodes.len() as u32);
        let mut full = if fed { name.to_owned() } else { format!("{}{name}", self.scope) };
        if !by_user && self.names.contains_key(&full) {
            // The search continues with the number after the last one used. If it began at 1 each time, it
            // would take longer for every further node of the same name.
            let number = self.numbers.entry(full.clone()).or_default();
            let taken = full;
            full = loop {
                *number += 1;
                let name = format!("{taken}_{number}");
                if !self.names.contains_key(&name) {
                    break name;
                }
            };
        }
        self.names.entry(full.clone()).or_insert(id);
        let with_variable = self.with_variable(&op);
        let mut node = NodeSpec { name: full, op, inputs: inputs.to_vec(), device: None };
        match with_variable {
            Some(device) => node.device = device,
            None => self.device_scopes.place(&mut node, &self.graph),
        }
        self.graph.nodes.push(node);
        if self.error.is_none() {
            let checked = self.graph.validate_links(id, &mut BTreeSet::new());
            match checked.and_then(|()| self.graph.infer_node(id, &self.tensors, BATCH)) {
                Ok(tensor) => self.tensors.push(tensor),
                Err(error) => self.fail(error),
            }
        }
        id
    }

    /// Returns the device of the variable that the operation changes or differentiates by, because the
    /// operation runs where the variable is. Returns `None` for other operations.
    fn with_variable(&self, op: &Op) -> Option<Option<OpDeviceSpec>> {
        let variable = match op {
            Op::Session(
                SessionOp::Assign { variable, .. }
                | SessionOp::Gradient { variable }
                | SessionOp::Apply { variable, .. },
            ) => *variable,
            _ => return None,
        };
        Some(self.variable_nodes.get(variable.index()).and_then(|node| self.graph.nodes[node.index()].device))
    }

    /// Records an error: the open layer cannot be applied to `tensors`. `expected` describes the tensors
    /// that the layer accepts. [`finish`](Self::finish) returns the error with the layer's name. Returns a
    /// placeholder node, so that the caller can continue.
    pub fn refuse(&mut self, expected: impl Into<String>, tensors: &[NodeId]) -> NodeId {
        let layer = match &self.layer {
            Some((layer, _)) => layer.clone(),
            None if self.scope.is_empty() => self.graph.name.clone(),
            None => self.scope.trim_end_matches('/').to_owned(),
        };
        let got: Vec<String> = tensors
            .iter()
            .map(|&node| self.tensor(node).map_or_else(|| self.graph.label(node), ToString::to_string))
            .collect();
        self.fail(GraphError::Layer { layer, expected: expected.into(), got: got.join(" and ") });
        tensors.first().copied().unwrap_or(NodeId(0))
    }

    /// Records an error if it is the first one. Later errors are ignored, because they usually follow from
    /// the first.
    pub(super) fn fail(&mut self, error: GraphError) {
        self.error.get_or_insert(error);
    }

    /// Returns the shape and type of a node's output for a batch of 2. Layers use it to determine the shapes
    /// of their inputs. Returns `None` if the node caused the first error or was added after it;
    /// [`finish`](Self::finish) returns this error.
    pub fn tensor(&self, node: NodeId) -> Option<&TensorSpec> {
        self.tensors.get(node.index())
    }

    /// Returns the shape of a node's output for one example, without the batch. Returns `None` if the output
    /// has no axis, or if [`tensor`](Self::tensor) returns `None`.
    pub fn example_shape(&self, node: NodeId) -> Option<Shape> {
        let (_, example) = self.tensor(node)?.shape.0.split_first()?;
        Some(Shape(example.to_vec()))
    }

    /// Returns the number of axes of a node's output, including the batch; 0 if [`tensor`](Self::tensor)
    /// returns `None`.
    pub fn rank(&self, node: NodeId) -> usize {
        self.tensor(node).map_or(0, |tensor| tensor.shape.rank())
    }

    /// Adds a tensor that predictions return, such as the scores of each class. Its first axis must be the
    /// batch.
    pub fn output(&mut self, name: &str, node: NodeId) {
        self.graph.outputs.push(OutputSpec { name: name.to_owned(), node });
    }

    /// Adds a number that workers plot while they train, such as a part of the loss. The node must return an
    /// f32 scalar. The open scopes are put before the name; if the name is already in use, a number is
    /// appended to it. Workers compute the number only if the job writes summaries, and only from time to
    /// time.
    pub fn summary_scalar(&mut self, name: &str, node: NodeId) {
        self.summary(name, node, GraphSummaryKind::Scalar);
    }

    /// Adds a histogram that workers plot while they train: the distribution of the elements of a tensor of
    /// floats, such as a variable or the output of a layer. The rules of
    /// [`summary_scalar`](Self::summary_scalar) apply to its name.
    pub fn summary_histogram(&mut self, name: &str, node: NodeId) {
        self.summary(name, node, GraphSummaryKind::Histogram);
    }

    fn summary(&mut self, name: &str, node: NodeId, kind: GraphSummaryKind) {
        let full = format!("{}{name}", self.scope);
        let taken = |name: &str| self.graph.summaries.iter().any(|summary| summary.name == name);
        // A layer that is applied several times declares its summaries several times.
        let numbered = (1..).map(|number| format!("{full}_{number}"));
        let name = std::iter::once(full.clone()).chain(numbered).find(|name| !taken(name));
        let name = name.expect("the list of numbers has no end");
        self.graph.summaries.push(GraphSummarySpec { name, node, kind });
    }

    /// Returns the finished graph. Training minimises `loss`. `metrics` are the names and nodes of values
    /// that are evaluated together with the loss.
    ///
    /// # Errors
    /// Returns the first fault, with the name of the node or variable.
    pub fn finish(mut self, loss: NodeId, metrics: &[(&str, NodeId)]) -> Result<GraphSpec, GraphError> {
        self.graph.loss = loss;
        self.graph.metrics =
            metrics.iter().map(|&(name, node)| MetricSpec { name: name.to_owned(), node }).collect();
        if let Some(error) = self.error {
            return Err(error);
        }
        self.graph.validate(BATCH)?;
        Ok(self.graph)
    }

    /// Returns the finished graph for a session, which needs neither loss nor metrics.
    ///
    /// # Errors
    /// Returns the first fault, with the name of the node or variable.
    pub fn finish_session(self) -> Result<GraphSpec, GraphError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        self.graph.validate_session()?;
        Ok(self.graph)
    }

    /// Returns the unfinished graph.
    pub(super) const fn graph(&self) -> &GraphSpec {
        &self.graph
    }
}
