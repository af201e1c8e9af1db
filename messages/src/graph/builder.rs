//! Puts a graph together, one operation at a time. What it gives has passed the same check as a graph from outside.

use std::collections::BTreeSet;

use super::geometry::{Stride, Window};
use super::op::Op;
use super::spec::{GraphError, GraphSpec, MetricSpec, NodeSpec};
use crate::id::{NodeId, VariableId};
use crate::tensor::{DType, Shape, TensorSpec};
use crate::variable::{DeviceSpec, InitializerSpec, VariableSpec};

/// A graph that is being put together.
#[derive(Debug)]
pub struct GraphBuilder {
    graph: GraphSpec,
    names: BTreeSet<String>,
    device: Option<DeviceSpec>,
    /// What every node gives, as long as nothing was wrong.
    tensors: Vec<TensorSpec>,
    /// The first thing that was wrong.
    error: Option<GraphError>,
}

/// The batch that shapes are inferred for while a graph is built. A graph that mixes its batch with the extents of
/// its variables may fit for one size and not for another: the job checks it again for its own.
const BATCH: usize = 2;

impl GraphBuilder {
    /// An empty graph of that name.
    pub fn new(name: &str) -> Self {
        let graph = GraphSpec {
            name: name.to_owned(),
            variables: Vec::new(),
            nodes: Vec::new(),
            loss: NodeId(0),
            metrics: Vec::new(),
        };
        Self { graph, names: BTreeSet::new(), device: None, tensors: Vec::new(), error: None }
    }

    /// Asks for that device for the variables made within `build`.
    pub fn on_device<T>(&mut self, device: DeviceSpec, build: impl FnOnce(&mut Self) -> T) -> T {
        let outer = self.device.replace(device);
        let built = build(self);
        self.device = outer;
        built
    }

    /// Floats that come with each example, under that name.
    pub fn input(&mut self, name: &str, example: impl Into<Shape>) -> NodeId {
        self.push(name, Op::Input { example: TensorSpec::f32(example) }, &[])
    }

    /// One integer that comes with each example, under that name.
    pub fn labels(&mut self, name: &str) -> NodeId {
        self.push(name, Op::Input { example: TensorSpec { shape: Shape::scalar(), dtype: DType::I32 } }, &[])
    }

    /// A variable that lives on the ps tasks.
    pub fn variable(&mut self, name: &str, shape: impl Into<Shape>, initializer: InitializerSpec) -> NodeId {
        let variable = VariableId(self.graph.variables.len() as u32);
        let (name, device) = (name.to_owned(), self.device);
        self.graph.variables.push(VariableSpec {
            name: name.clone(),
            shape: shape.into(),
            initializer,
            device,
        });
        self.push(&name, Op::Variable { variable }, &[])
    }

    /// a·b: `[m, k]`, `[k, n]` → `[m, n]`.
    pub fn matmul(&mut self, a: NodeId, b: NodeId) -> NodeId {
        self.push("mat_mul", Op::MatMul { transpose_a: false, transpose_b: false }, &[a, b])
    }

    /// `bias` added to every row of `x`: `[.., n]`, `[n]` → `[.., n]`.
    pub fn bias_add(&mut self, x: NodeId, bias: NodeId) -> NodeId {
        self.push("bias_add", Op::BiasAdd, &[x, bias])
    }

    /// max(x, 0).
    pub fn relu(&mut self, x: NodeId) -> NodeId {
        self.push("relu", Op::Relu, &[x])
    }

    /// a + b, of one shape.
    pub fn add(&mut self, a: NodeId, b: NodeId) -> NodeId {
        self.push("add", Op::Add, &[a, b])
    }

    /// Each example in another shape of as many elements.
    pub fn reshape(&mut self, x: NodeId, example: impl Into<Shape>) -> NodeId {
        self.push("reshape", Op::Reshape { shape: example.into() }, &[x])
    }

    /// images `[batch, h, w, cin]`, kernel `[kh, kw, cin, cout]` → `[batch, ho, wo, cout]`.
    pub fn conv2d(&mut self, images: NodeId, kernel: NodeId, geometry: Stride) -> NodeId {
        self.push("conv2d", Op::Conv2d(geometry), &[images, kernel])
    }

    /// The maximum of each window: `[batch, h, w, c]` → `[batch, ho, wo, c]`.
    pub fn max_pool2d(&mut self, images: NodeId, geometry: Window) -> NodeId {
        self.push("max_pool2d", Op::MaxPool2d(geometry), &[images])
    }

    /// The mean of each window: `[batch, h, w, c]` → `[batch, ho, wo, c]`.
    pub fn average_pool2d(&mut self, images: NodeId, geometry: Window) -> NodeId {
        self.push("average_pool2d", Op::AveragePool2d(geometry), &[images])
    }

    /// The mean of each channel: `[batch, h, w, c]` → `[batch, c]`.
    pub fn global_average_pool(&mut self, images: NodeId) -> NodeId {
        self.push("global_average_pool", Op::GlobalAveragePool, &[images])
    }

    /// Mean cross-entropy of softmax(logits) `[batch, classes]` with integer labels `[batch]`.
    pub fn softmax_cross_entropy(&mut self, logits: NodeId, labels: NodeId) -> NodeId {
        self.push("softmax_cross_entropy", Op::SoftmaxCrossEntropy, &[logits, labels])
    }

    /// The share of examples whose largest logit is the label's.
    pub fn accuracy(&mut self, logits: NodeId, labels: NodeId) -> NodeId {
        self.push("accuracy", Op::Accuracy, &[logits, labels])
    }

    /// Any operation. A name that is taken gets a number behind it, except a variable's and an input's, which
    /// [`finish`](Self::finish) refuses.
    pub fn push(&mut self, name: &str, op: Op, inputs: &[NodeId]) -> NodeId {
        let by_user = matches!(op, Op::Input { .. } | Op::Variable { .. });
        let mut unique = name.to_owned();
        let mut number = 1;
        while !self.names.insert(unique.clone()) && !by_user {
            unique = format!("{name}_{number}");
            number += 1;
        }
        self.graph.nodes.push(NodeSpec { name: unique, op, inputs: inputs.to_vec() });
        let id = NodeId(self.graph.nodes.len() as u32 - 1);
        if self.error.is_none() {
            let checked = self.graph.validate_links(id, &mut BTreeSet::new());
            match checked.and_then(|()| self.graph.infer_node(id, &self.tensors, BATCH)) {
                Ok(tensor) => self.tensors.push(tensor),
                Err(error) => self.error = Some(error),
            }
        }
        id
    }

    /// The shape of one example of a node's output: what a layer needs to know of its input. `None` once something
    /// is wrong, which [`finish`](Self::finish) will tell.
    pub fn example_shape(&self, node: NodeId) -> Option<Shape> {
        let (_, example) = self.tensors.get(node.index())?.shape.0.split_first()?;
        Some(Shape(example.to_vec()))
    }

    /// The graph that makes `loss` small, with scalars that are evaluated beside it.
    ///
    /// # Errors
    /// The first thing that is wrong, with the node's or the variable's name.
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
}
