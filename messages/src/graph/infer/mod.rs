//! Shape inference: the shape and type of each node's output for a given batch size. All shapes are known
//! before the graph runs, and no tensor is empty.

mod element;
mod image;
mod loss;
mod normal;
mod product;
mod session;
mod shape;

use super::error::GraphError;
use super::limits::{RANK_MAX, TENSOR_ELEMENTS_MAX};
use super::op::Op;
use super::spec::GraphSpec;
use crate::id::NodeId;
use crate::tensor::{DType, Shape, TensorSpec};

/// The maximum number of inputs that an error lists. A bound is needed because a concat in a received graph
/// may have any number of inputs.
const INPUTS_SHOWN_MAX: usize = 8;

impl GraphSpec {
    /// Returns the shape and type of every node's output for batches of `batch` examples. `batch` must be at
    /// least 1. The graph must have passed [`validate`](Self::validate), for this or another batch size, or
    /// [`validate_session`](Self::validate_session); otherwise, the graph may refer to nodes or variables
    /// that do not exist.
    ///
    /// # Errors
    /// If the inputs of a node do not fit its operation; the error names the first such node.
    pub fn infer(&self, batch: usize) -> Result<Vec<TensorSpec>, GraphError> {
        let mut tensors: Vec<TensorSpec> = Vec::with_capacity(self.nodes.len());
        for position in 0..self.nodes.len() {
            let output = self.infer_node(NodeId(position as u32), &tensors, batch)?;
            tensors.push(output);
        }
        Ok(tensors)
    }

    /// Returns the shape and type of the output of node `id`. `tensors` has the shapes and types of the
    /// outputs of all earlier nodes. The node's inputs must exist, and their number must fit the operation.
    ///
    /// # Errors
    /// If the inputs of the node do not fit its operation.
    pub fn infer_node(
        &self,
        id: NodeId,
        tensors: &[TensorSpec],
        batch: usize,
    ) -> Result<TensorSpec, GraphError> {
        let site = Site { graph: self, id, tensors };
        let output = site.infer(batch)?;
        let elements = output.shape.checked_elements().unwrap_or(usize::MAX);
        if elements > TENSOR_ELEMENTS_MAX || output.shape.rank() > RANK_MAX {
            return Err(GraphError::TooLarge { node: self.label(id), tensor: output });
        }
        Ok(output)
    }
}

/// A node whose output is being inferred, and the outputs of the nodes before it.
struct Site<'a> {
    graph: &'a GraphSpec,
    id: NodeId,
    tensors: &'a [TensorSpec],
}

impl<'a> Site<'a> {
    fn infer(&self, batch: usize) -> Result<TensorSpec, GraphError> {
        match &self.graph.nodes[self.id.index()].op {
            Op::Input { example } if example.shape.0.contains(&0) => {
                Err(self.misfit("examples with all extents above 0"))
            }
            Op::Input { example } if !example.dtype.is_of_examples() => {
                Err(self.out_of_range("type", "f32 or i32: feed other types to a placeholder", example.dtype))
            }
            Op::Input { example } => {
                Ok(TensorSpec { shape: example.shape.with_leading(batch), dtype: example.dtype })
            }
            Op::Variable { variable } => Ok(self.graph.variables[variable.index()].tensor()),
            Op::Constant { .. } => Ok(scalar()),
            Op::ToFloat => self.to_float(),
            Op::Unary(op) => self.unary(*op),
            Op::Binary(_) => self.binary(),
            Op::Reduce { axes, keep, .. } => self.reduce(axes, *keep),
            Op::Reshape { shape } => self.reshape(shape),
            Op::Transpose { axes } => self.transpose(axes),
            Op::Concat { axis } => self.concat(*axis),
            Op::Slice { axis, start, length } => self.slice(*axis, *start, *length),
            Op::MatMul { transpose_a, transpose_b } => self.mat_mul(*transpose_a, *transpose_b),
            Op::BiasAdd => self.bias_add(),
            Op::Embedding => self.embedding(),
            Op::Conv2d(geometry) => self.conv2d(geometry),
            Op::MaxPool2d(geometry) | Op::AveragePool2d(geometry) => self.pool2d(geometry),
            Op::GlobalAveragePool => self.global_average_pool(),
            Op::BatchNorm { epsilon, momentum } => self.batch_norm(*epsilon, *momentum),
            Op::LayerNorm { epsilon } => self.layer_norm(*epsilon),
            Op::Dropout { rate } => self.dropout(*rate),
            Op::Softmax { causal } => self.softmax(*causal),
            Op::LogSoftmax => self.softmax(false),
            Op::SoftmaxCrossEntropy => self.softmax_cross_entropy(),
            Op::SigmoidCrossEntropy | Op::MeanSquaredError => self.alike(),
            Op::Accuracy => self.classified(),
            Op::TopK { k } => self.top_k(*k),
            Op::AucCounts { bins } => self.auc_counts(*bins),
            Op::Session(op) => self.session(op),
        }
    }

    fn input(&self, position: usize) -> &'a TensorSpec {
        &self.tensors[self.graph.nodes[self.id.index()].inputs[position].index()]
    }

    fn inputs(&self) -> usize {
        self.graph.nodes[self.id.index()].inputs.len()
    }

    /// Returns the extents of the input at `position` if its elements are floats.
    fn floats(&self, position: usize) -> Option<&'a [usize]> {
        let TensorSpec { shape, dtype } = self.input(position);
        (*dtype == DType::F32).then_some(&shape.0[..])
    }

    /// Returns the extents of the input at `position` if its elements are integers.
    fn integers(&self, position: usize) -> Option<&'a [usize]> {
        let TensorSpec { shape, dtype } = self.input(position);
        (*dtype == DType::I32).then_some(&shape.0[..])
    }

    fn misfit(&self, expected: impl Into<String>) -> GraphError {
        let shown = (0..self.inputs()).take(INPUTS_SHOWN_MAX);
        let mut got: Vec<String> = shown.map(|position| self.input(position).to_string()).collect();
        if self.inputs() > INPUTS_SHOWN_MAX {
            got.push(format!(".. of {} inputs", self.inputs()));
        }
        GraphError::Shape {
            node: self.graph.label(self.id),
            expected: expected.into(),
            got: if got.is_empty() { "none".into() } else { got.join(", ") },
        }
    }

    /// Returns the error for an out-of-range numeric setting of the operation, such as an epsilon of 0.
    fn out_of_range(&self, what: &'static str, expected: &'static str, got: impl ToString) -> GraphError {
        GraphError::Number { node: self.graph.label(self.id), what, expected, got: got.to_string() }
    }
}

fn scalar() -> TensorSpec {
    TensorSpec::f32(Shape::scalar())
}

/// Returns these axes as a shape, for display in an error.
fn shown(axes: &[usize]) -> Shape {
    Shape(axes.to_vec())
}

fn f32_of(extents: &[usize]) -> TensorSpec {
    TensorSpec::f32(Shape(extents.to_vec()))
}

/// Returns the shape to which tensors of these extents are broadcast: aligned at the last axis, where missing
/// axes and axes of extent 1 are repeated. Returns `None` if the extents do not fit.
fn broadcast(a: &[usize], b: &[usize]) -> Option<Shape> {
    let rank = a.len().max(b.len());
    let extent = |extents: &[usize], axis: usize| {
        (axis + extents.len()).checked_sub(rank).map_or(1, |axis| extents[axis])
    };
    let pairs = (0..rank).map(|axis| (extent(a, axis), extent(b, axis)));
    let extents = pairs.map(|pair| match pair {
        (a, b) if a == b => Some(a),
        (1, other) | (other, 1) => Some(other),
        _ => None,
    });
    extents.collect::<Option<_>>().map(Shape)
}

/// Returns the shape of a tensor that was reduced along `axes`, which must exist and ascend. The axes keep
/// the extent 1 if `keep` is true.
fn reduced(extents: &[usize], axes: &[usize], keep: bool) -> Option<Shape> {
    let ascending = axes.windows(2).all(|pair| pair[0] < pair[1]);
    if axes.is_empty() || !ascending || axes.last().is_some_and(|&last| last >= extents.len()) {
        return None;
    }
    let left = extents.iter().enumerate().filter_map(|(axis, &extent)| match axes.contains(&axis) {
        false => Some(extent),
        true => keep.then_some(1),
    });
    Some(Shape(left.collect()))
}
