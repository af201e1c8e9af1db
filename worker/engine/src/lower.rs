//! Lowers every operation of a graph to kernels, with the shapes for a fixed batch size. This module must
//! not depend on gradients, fusion or memory.

use pushpull_kernels::cpu::{
    AxisPart, BadGeometry, Binary, Broadcast, Conv2d, Padding, Pool2d, Reduction, Unary,
};
use pushpull_messages::graph::{BinaryOp, GraphError, GraphSpec, Op, ReductionOp, Stride, UnaryOp, Window};
use pushpull_messages::id::{NodeId, VariableId};
use pushpull_messages::input::ColumnSpec;
use pushpull_messages::tensor::{DType, TensorSpec};

use super::error::CompileError;
use super::ir::{Epilogue, Factors, Ir, Kernel, Value};

/// The purpose of a program, which changes what some operations compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Normalisations use the batch's statistics, and dropout drops elements.
    Training,
    /// Normalisations use the moving statistics, and dropout keeps all elements.
    Evaluation,
}

/// A graph, lowered to kernels.
pub(super) struct Lowered {
    pub ir: Ir,
    /// The value of every node of the graph.
    pub values: Vec<Value>,
    /// For each update of an untrained variable: the variable, and the value that is subtracted from it in
    /// each step.
    pub updates: Vec<(VariableId, Value)>,
}

/// Lowers a valid graph for batches of `batch` examples with these columns.
///
/// # Errors
/// If the data have no column for an input, or the kernels cannot compute an operation with these shapes.
pub(super) fn lower(
    graph: &GraphSpec,
    batch: usize,
    columns: &[ColumnSpec],
    mode: Mode,
) -> Result<Lowered, CompileError> {
    let tensors: Vec<Option<TensorSpec>> = graph.infer(batch)?.into_iter().map(Some).collect();
    let mut lowering = Lowering::new(graph, columns, mode, &tensors);
    let nodes = 0..graph.nodes.len() as u32;
    let values: Result<_, CompileError> = nodes.map(|node| lowering.lower(NodeId(node))).collect();
    let values = values?;
    let Lowering { ir, updates, .. } = lowering;
    Ok(Lowered { ir, values, updates })
}

/// The nodes of a graph that have been lowered so far.
pub(super) struct Lowering<'a> {
    graph: &'a GraphSpec,
    columns: &'a [ColumnSpec],
    mode: Mode,
    /// The tensor of each node; `None` if the node is not lowered.
    tensors: &'a [Option<TensorSpec>],
    pub ir: Ir,
    /// The value of each node; `None` if the node has not been lowered.
    pub values: Vec<Option<Value>>,
    /// See [`Lowered::updates`].
    pub updates: Vec<(VariableId, Value)>,
}

impl<'a> Lowering<'a> {
    /// Returns a lowering of a graph whose needed nodes have these tensors.
    pub fn new(
        graph: &'a GraphSpec,
        columns: &'a [ColumnSpec],
        mode: Mode,
        tensors: &'a [Option<TensorSpec>],
    ) -> Self {
        let values = vec![None; graph.nodes.len()];
        Self { graph, columns, mode, tensors, ir: Ir::default(), values, updates: Vec::new() }
    }

    /// Lowers a node whose inputs have been lowered, and returns its value.
    ///
    /// # Errors
    /// If the data have no column for the node, or the kernels cannot compute it with these shapes.
    pub fn lower(&mut self, id: NodeId) -> Result<Value, CompileError> {
        let value = self.node(id)?;
        self.values[id.index()] = Some(value);
        Ok(value)
    }

    /// Returns the tensor of a node.
    pub fn tensor(&self, id: NodeId) -> &'a TensorSpec {
        self.tensors[id.index()].as_ref().expect("a node that is needed has a tensor")
    }

    fn value(&self, node: NodeId) -> Value {
        self.values[node.index()].expect("inputs are lowered first")
    }

    fn node(&mut self, id: NodeId) -> Result<Value, CompileError> {
        let (graph, node) = (self.graph, &self.graph.nodes[id.index()]);
        let inputs: Vec<Value> = node.inputs.iter().map(|&input| self.value(input)).collect();
        let shapes: Vec<Vec<usize>> =
            node.inputs.iter().map(|&input| self.tensor(input).shape.0.clone()).collect();
        let output = self.tensor(id).shape.0.clone();
        let kernel = match &node.op {
            Op::Input { example } => Kernel::Column(self.column(&node.name, example)?),
            Op::Variable { variable } => Kernel::Variable(*variable),
            Op::Constant { value } => Kernel::Constant(*value),
            Op::ToFloat => Kernel::ToFloat,
            Op::Unary(op) => Kernel::Unary(unary(*op)),
            Op::Binary(op) => Kernel::Binary(binary(*op), self.broadcast(id, &shapes[0], &shapes[1])?),
            Op::BiasAdd => Kernel::Binary(Binary::Add, self.broadcast(id, &shapes[0], &shapes[1])?),
            Op::Reduce { reduction, axes, .. } => self.reduction(id, *reduction, axes, &shapes[0])?,
            Op::Reshape { .. } => Kernel::View,
            Op::Transpose { axes } => Kernel::Transpose { shape: shapes[0].clone(), axes: axes.clone() },
            Op::Concat { axis } => concat(*axis, &shapes, &output),
            Op::Slice { axis, start, length } => {
                let part = AxisPart { axis: *axis, start: *start, len: *length };
                Kernel::Slice { shape: shapes[0].clone(), part }
            }
            Op::MatMul { transpose_a, transpose_b } => {
                Self::product([&shapes[0], &shapes[1]], [*transpose_a, *transpose_b])
            }
            Op::Embedding => Kernel::Gather { width: shapes[0][1] },
            Op::Conv2d(geometry) => Kernel::Conv2d(self.conv2d(id, &shapes, geometry)?, Epilogue::Bare),
            Op::MaxPool2d(geometry) => {
                let pool = self.pool2d(id, &shapes[0], geometry)?;
                // The position of each maximum takes one byte per output element.
                let bytes = output.iter().product::<usize>().div_ceil(size_of::<f32>());
                return Ok(self.push(id, Kernel::MaxPool2d(pool), &inputs, [output, vec![bytes]]));
            }
            Op::AveragePool2d(geometry) => Kernel::AveragePool2d(self.pool2d(id, &shapes[0], geometry)?),
            Op::GlobalAveragePool => {
                let shape = &shapes[0];
                Kernel::GlobalAveragePool([shape[0], shape[1] * shape[2], shape[3]])
            }
            Op::BatchNorm { epsilon, momentum } => {
                return self.batch_norm(id, &inputs, *epsilon, *momentum);
            }
            Op::LayerNorm { epsilon } => {
                let rows = output[..output.len() - 1].to_vec();
                let kernel = Kernel::LayerNorm { epsilon: *epsilon };
                return Ok(self.push(id, kernel, &inputs, [output, rows.clone(), rows]));
            }
            Op::Dropout { rate } if self.mode == Mode::Training && *rate > 0.0 => Kernel::Dropout {
                rate: *rate,
                stream: u64::from(id.0),
                example: output.iter().skip(1).product(),
            },
            Op::Dropout { .. } => return Ok(inputs[0]),
            Op::Softmax { causal } => {
                Kernel::Softmax { width: *output.last().expect("an axis, by inference"), causal: *causal }
            }
            Op::LogSoftmax => Kernel::LogSoftmax { width: *output.last().expect("an axis, by inference") },
            Op::SoftmaxCrossEntropy if self.tensor(node.inputs[1]).dtype == DType::F32 => {
                let classes = *shapes[0].last().expect("an axis, by inference");
                Kernel::SoftmaxCrossEntropyDense { classes }
            }
            Op::SoftmaxCrossEntropy => Kernel::SoftmaxCrossEntropy,
            Op::SigmoidCrossEntropy => Kernel::SigmoidCrossEntropy,
            Op::MeanSquaredError => Kernel::MeanSquaredError,
            Op::Accuracy => Kernel::TopK { k: 1 },
            Op::TopK { k } => Kernel::TopK { k: *k },
            Op::AucCounts { .. } => Kernel::AucCounts,
            Op::Session(_) => return Err(GraphError::OfSessions { node: graph.label(id) }.into()),
        };
        Ok(self.push(id, kernel, &inputs, [output]))
    }

    fn push<const N: usize>(
        &mut self,
        id: NodeId,
        kernel: Kernel,
        inputs: &[Value],
        outputs: [Vec<usize>; N],
    ) -> Value {
        self.ir.push(id, kernel, inputs, outputs)
    }

    fn reduction(
        &self,
        id: NodeId,
        reduction: ReductionOp,
        axes: &[usize],
        from: &[usize],
    ) -> Result<Kernel, CompileError> {
        let kept = |(axis, &extent): (usize, &usize)| if axes.contains(&axis) { 1 } else { extent };
        let kept: Vec<usize> = from.iter().enumerate().map(kept).collect();
        Ok(Kernel::Reduce(reduce(reduction), self.broadcast(id, &kept, from)?))
    }

    /// Returns the index of the column that an input reads.
    fn column(&self, name: &str, example: &TensorSpec) -> Result<usize, CompileError> {
        let found = self.columns.iter().position(|column| column.name == name && column.example == *example);
        found.ok_or_else(|| CompileError::NoColumn {
            name: name.to_owned(),
            example: example.clone(),
            columns: if self.columns.is_empty() { "none".into() } else { ColumnSpec::list(self.columns) },
        })
    }

    fn product([a, b]: [&[usize]; 2], [transpose_a, transpose_b]: [bool; 2]) -> Kernel {
        let (outer, [a1, a2]) = a.split_last_chunk().expect("two axes, by inference");
        let (_, [b1, b2]) = b.split_last_chunk().expect("two axes, by inference");
        let (mut m, k) = if transpose_a { (*a2, *a1) } else { (*a1, *a2) };
        let n = if transpose_b { *b1 } else { *b2 };
        let mut batch: usize = outer.iter().product();
        if b.len() == 2 && !transpose_a {
            m *= batch;
            batch = 1;
        }
        match batch {
            1 => Kernel::Product(Factors { m, k, n, transpose_a, transpose_b }, Epilogue::Bare),
            _ => Kernel::BatchedProduct(batch, Factors { m, k, n, transpose_a, transpose_b }),
        }
    }

    fn broadcast(&self, id: NodeId, a: &[usize], b: &[usize]) -> Result<Broadcast, CompileError> {
        Broadcast::new(a, b).map_err(|error| CompileError::Broadcast { node: self.graph.label(id), error })
    }

    fn conv2d(&self, id: NodeId, shapes: &[Vec<usize>], geometry: &Stride) -> Result<Conv2d, CompileError> {
        let four = |shape: &[usize]| <[usize; 4]>::try_from(shape).expect("4 axes, by inference");
        let (images, kernel) = (four(&shapes[0]), four(&shapes[1]));
        let stride = stride(geometry.stride, images);
        Conv2d::new(images, kernel, stride, padding(geometry.padding))
            .map_err(|error| self.bad_geometry(id, error))
    }

    fn pool2d(&self, id: NodeId, images: &[usize], geometry: &Window) -> Result<Pool2d, CompileError> {
        let images = images.try_into().expect("4 axes, by inference");
        let stride = stride(geometry.stride, images);
        Pool2d::new(images, geometry.window, stride, padding(geometry.padding))
            .map_err(|error| self.bad_geometry(id, error))
    }

    fn bad_geometry(&self, id: NodeId, error: BadGeometry) -> CompileError {
        CompileError::Geometry { node: self.graph.label(id), error }
    }

    /// Lowers a batch normalisation. The moving mean and variance are untrained variables. The update of such
    /// a variable is what the variable's shard subtracts from it: (1 − momentum) · (moving value − value of
    /// the batch).
    fn batch_norm(
        &mut self,
        id: NodeId,
        inputs: &[Value],
        epsilon: f32,
        momentum: f32,
    ) -> Result<Value, CompileError> {
        let &[x, gamma, beta, moving_mean, moving_variance] = inputs else {
            unreachable!("5 inputs, by validation")
        };
        let channels = self.ir.shape(gamma).to_vec();
        let [mean, variance] = match self.mode {
            Mode::Evaluation => {
                // The variance may be negative if several workers computed their updates from the same
                // value. The relu replaces a negative variance by 0.
                let kernel = Kernel::Unary(Unary::Relu);
                [moving_mean, self.push(id, kernel, &[moving_variance], [channels.clone()])]
            }
            Mode::Training => {
                let rows = [self.ir.elements(x) / channels[0], channels[0]];
                let moments =
                    self.push(id, Kernel::Moments { rows }, &[x], [channels.clone(), channels.clone()]);
                let batch = [moments, moments.output(1)];
                // Each device, and each use in the graph, contributes a part of the update.
                let share = self.push(id, Kernel::Share, &[], [vec![]]);
                let alike = self.broadcast(id, &channels, &channels)?;
                let scaled = self.broadcast(id, &channels, &[])?;
                for (moving, batch) in [moving_mean, moving_variance].into_iter().zip(batch) {
                    let step = (1.0 - momentum) / self.uses(moving) as f32;
                    let step = self.push(id, Kernel::Constant(step), &[], [vec![]]);
                    let kernel = Kernel::Binary(Binary::Sub, alike);
                    let away = self.push(id, kernel, &[moving, batch], [channels.clone()]);
                    let kernel = Kernel::Binary(Binary::Mul, scaled);
                    let update = self.push(id, kernel.clone(), &[away, step], [channels.clone()]);
                    let update = self.push(id, kernel, &[update, share], [channels.clone()]);
                    let Op::Variable { variable } = self.graph.nodes[self.origin(moving).index()].op else {
                        unreachable!("a variable, by inference")
                    };
                    self.updates.push((variable, update));
                }
                batch
            }
        };
        let kernel = Kernel::ReciprocalStddev { epsilon };
        let scale = self.push(id, kernel, &[variance], [channels]);
        let shape = self.ir.shape(x).to_vec();
        Ok(self.push(id, Kernel::BatchNorm, &[x, mean, scale, gamma, beta], [shape]))
    }

    /// Returns the number of needed normalisations that update this moving mean or variance.
    fn uses(&self, moving: Value) -> usize {
        let variable = &self.graph.nodes[self.origin(moving).index()].op;
        let needed = self.graph.nodes.iter().zip(self.tensors).filter(|(_, tensor)| tensor.is_some());
        let norms = needed.filter(|(node, _)| matches!(node.op, Op::BatchNorm { .. }));
        let kept = norms.flat_map(|(node, _)| &node.inputs[3..]);
        kept.filter(|input| self.graph.nodes[input.index()].op == *variable).count()
    }

    fn origin(&self, value: Value) -> NodeId {
        self.ir.nodes[value.node].origin
    }
}

/// Returns the stride, limited to the size of the images. A larger stride gives a single window, just as the
/// limited stride does, but could overflow the arithmetic.
fn stride([down, right]: [usize; 2], [_, height, width, _]: [usize; 4]) -> [usize; 2] {
    [down.min(height), right.min(width)]
}

/// Returns the kernel of a concatenation of tensors with these shapes.
fn concat(axis: usize, shapes: &[Vec<usize>], output: &[usize]) -> Kernel {
    let mut start = 0;
    let part = |shape: &Vec<usize>| {
        let part = AxisPart { axis, start, len: shape[axis] };
        start += part.len;
        part
    };
    Kernel::Concat { parts: shapes.iter().map(part).collect(), shape: output.to_vec() }
}

const fn padding(padding: pushpull_messages::graph::Padding) -> Padding {
    match padding {
        pushpull_messages::graph::Padding::Valid => Padding::Valid,
        pushpull_messages::graph::Padding::Same => Padding::Same,
    }
}

const fn unary(op: UnaryOp) -> Unary {
    match op {
        UnaryOp::Neg => Unary::Neg,
        UnaryOp::Abs => Unary::Abs,
        UnaryOp::Square => Unary::Square,
        UnaryOp::Sqrt => Unary::Sqrt,
        UnaryOp::Exp => Unary::Exp,
        UnaryOp::Log => Unary::Log,
        UnaryOp::Sigmoid => Unary::Sigmoid,
        UnaryOp::Tanh => Unary::Tanh,
        UnaryOp::Relu => Unary::Relu,
        UnaryOp::LeakyRelu { slope } => Unary::LeakyRelu(slope),
        UnaryOp::Gelu => Unary::Gelu,
    }
}

const fn binary(op: BinaryOp) -> Binary {
    match op {
        BinaryOp::Add => Binary::Add,
        BinaryOp::Sub => Binary::Sub,
        BinaryOp::Mul => Binary::Mul,
        BinaryOp::Div => Binary::Div,
    }
}

const fn reduce(op: ReductionOp) -> Reduction {
    match op {
        ReductionOp::Sum => Reduction::Sum,
        ReductionOp::Mean => Reduction::Mean,
        ReductionOp::Max => Reduction::Max,
    }
}
