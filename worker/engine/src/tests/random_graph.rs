//! Builds random graphs from all operations: turns a list of choices into nodes whose shapes fit each other.
//! It handles only shapes and ranges, and computes no values.

use pushpull_messages::graph::{
    BinaryOp, GraphSpec, MetricSpec, NodeSpec, Op, Padding, ReductionOp, Stride, UnaryOp, Window,
};
use pushpull_messages::id::{NodeId, VariableId};
use pushpull_messages::tensor::{Shape, TensorSpec};
use pushpull_messages::variable::{InitializerSpec, VariableSpec};

use super::trial::Bounds;

/// The number of different kinds of steps (see [`Choice`]) from which a graph is built.
pub(super) const KINDS: u8 = 26;

/// A step that adds nodes to a graph: its kind, and six random bytes that choose its details.
pub(super) type Choice = (u8, [u8; 6]);

/// A random graph that is being built.
pub(super) struct RandomGraph {
    graph: GraphSpec,
    /// The shape and type of the output of each node.
    tensors: Vec<TensorSpec>,
    /// For each node, true if the node depends on data, and false if it depends only on variables.
    of_data: Vec<bool>,
    examples: usize,
    /// The nodes whose outputs are floats. Later steps may use them as inputs.
    pool: Vec<NodeId>,
    bounds: Bounds,
    /// The gamma, beta, moving mean and moving variance of each batch norm so far. Later batch norms may
    /// share them.
    norms: Vec<[NodeId; 4]>,
    /// True if all operations keep the examples separate, and keep the batch as the first axis.
    apart: bool,
}

/// The maximum number of elements of one tensor. It is small because the gradients are checked with finite
/// differences.
const ELEMENTS_MAX: usize = 160;

impl RandomGraph {
    pub fn new(examples: usize, apart: bool) -> Self {
        let graph = GraphSpec {
            name: "sketch".into(),
            variables: Vec::new(),
            nodes: Vec::new(),
            loss: NodeId(0),
            metrics: Vec::new(),
            outputs: Vec::new(),
            summaries: Vec::new(),
        };
        let (pool, bounds, norms) = (Vec::new(), Bounds::new(), Vec::new());
        let (tensors, of_data) = (Vec::new(), Vec::new());
        let mut sketch = Self { graph, tensors, of_data, examples, pool, bounds, norms, apart };
        let features = sketch.column(TensorSpec::f32([3]), None);
        let images = sketch.column(TensorSpec::f32([4, 3, 2]), None);
        let rows = sketch.column(TensorSpec::f32([2, 3]), None);
        // Data that is not combined with a variable has no gradient, but most of the nodes that follow should
        // have one.
        for (x, shape) in [(features, vec![3]), (images, vec![2]), (rows, vec![2, 3])] {
            let variable = sketch.variable(&shape, true).unwrap();
            sketch.push(Op::Binary(BinaryOp::Mul), &[x, variable]).unwrap();
        }
        sketch
    }

    /// Performs the steps in `choices`, and adds a loss, whose details the random bytes `end` choose.
    /// Returns the graph, and the bounds of its inputs.
    pub fn draw(mut self, choices: &[Choice], end: [u8; 6]) -> (GraphSpec, Bounds) {
        for &(kind, picks) in choices {
            self.step(kind % KINDS, picks);
        }
        let mut loss = self.scalar(end[0], end[1], end[2]);
        for pair in end[3..5].iter().filter(|&&pair| pair % 2 == 1) {
            let more = self.scalar(pair / 2, *pair, end[5]);
            loss = self.push(Op::Binary(BinaryOp::Add), &[loss, more]).unwrap();
        }
        self.graph.loss = loss;
        (self.graph, self.bounds)
    }

    /// Adds the means of the last nodes as metrics, so that an evaluation returns them.
    pub fn measure((mut graph, bounds): (GraphSpec, Bounds), examples: usize) -> (GraphSpec, Bounds) {
        let tensors = graph.infer(examples).unwrap();
        for (position, tensor) in tensors.iter().enumerate().rev().take(8) {
            let rank = tensor.shape.rank();
            if tensor.dtype == pushpull_messages::tensor::DType::F32 {
                let mut node = NodeId(position as u32);
                let mut push = |op: Op, inputs: &[NodeId]| {
                    let name = format!("metric{}", graph.nodes.len());
                    graph.nodes.push(NodeSpec { name, op, inputs: inputs.to_vec(), device: None });
                    NodeId(graph.nodes.len() as u32 - 1)
                };
                if rank > 0 {
                    let axes = (0..rank).collect();
                    node = push(Op::Reduce { reduction: ReductionOp::Mean, axes, keep: false }, &[node]);
                }
                graph.metrics.push(MetricSpec { name: format!("mean{position}"), node });
            }
        }
        (graph, bounds)
    }

    /// Adds a node, or returns `None` if its inputs do not fit or its output is too large.
    fn push(&mut self, op: Op, inputs: &[NodeId]) -> Option<NodeId> {
        let name = format!("n{}", self.graph.nodes.len());
        self.graph.nodes.push(NodeSpec { name, op, inputs: inputs.to_vec(), device: None });
        let id = NodeId(self.tensors.len() as u32);
        let fits = self.graph.infer_node(id, &self.tensors, self.examples).ok();
        match fits.filter(|tensor| tensor.shape.elements() <= ELEMENTS_MAX) {
            Some(tensor) => {
                let is_data = matches!(self.graph.nodes[id.index()].op, Op::Input { .. });
                self.of_data.push(is_data || inputs.iter().any(|input| self.of_data[input.index()]));
                if tensor.dtype == pushpull_messages::tensor::DType::F32 {
                    self.pool.push(id);
                }
                self.tensors.push(tensor);
                Some(id)
            }
            None => {
                self.graph.nodes.pop();
                None
            }
        }
    }

    fn column(&mut self, example: TensorSpec, bound: Option<usize>) -> NodeId {
        let id = self.push(Op::Input { example }, &[]).unwrap();
        if let Some(bound) = bound {
            self.bounds.insert(self.graph.nodes[id.index()].name.clone(), bound);
        }
        id
    }

    fn variable(&mut self, shape: &[usize], trainable: bool) -> Option<NodeId> {
        if shape.iter().product::<usize>() > ELEMENTS_MAX {
            return None;
        }
        let variable = VariableId(self.graph.variables.len() as u32);
        self.graph.variables.push(VariableSpec {
            name: format!("v{variable}"),
            shape: Shape(shape.to_vec()),
            dtype: pushpull_messages::tensor::DType::F32,
            initializer: InitializerSpec::Zeros,
            trainable,
            device: None,
        });
        self.push(Op::Variable { variable }, &[])
    }

    fn shape(&self, node: NodeId) -> Vec<usize> {
        self.tensors[node.index()].shape.0.clone()
    }

    /// Returns a node from the pool, usually one of the last four.
    fn pick(&self, choice: u8) -> NodeId {
        let few = if choice.is_multiple_of(4) { self.pool.len() } else { self.pool.len().min(4) };
        let node = self.pool[self.pool.len() - 1 - choice as usize / 4 % few];
        let is_apart = self.of_data[node.index()] && !self.shape(node).is_empty();
        match self.apart && !is_apart {
            // These nodes are the products of data and a variable that `new` added first.
            true => NodeId([4, 6, 8][choice as usize % 3]),
            false => node,
        }
    }

    fn unary(&mut self, op: UnaryOp, x: NodeId) -> Option<NodeId> {
        self.push(Op::Unary(op), &[x])
    }

    /// Adds nodes that compute x² + 1/2, which is positive. Returns the last node.
    fn positive(&mut self, x: NodeId) -> Option<NodeId> {
        let square = self.unary(UnaryOp::Square, x)?;
        let half = self.push(Op::Constant { value: 0.5 }, &[])?;
        self.push(Op::Binary(BinaryOp::Add), &[square, half])
    }

    fn step(&mut self, kind: u8, bytes: [u8; 6]) -> Option<NodeId> {
        let x = self.pick(bytes[0]);
        let shape = self.shape(x);
        let (rank, first) = (shape.len(), usize::from(self.apart));
        let fits = match kind {
            6 | 11 | 12 | 22 | 24 => rank > first,
            9 => rank > 0,
            13 | 15 => rank >= 2,
            14 => rank >= 3 || rank == 2 && !self.apart,
            21 => rank >= 2 && !self.apart,
            _ => true,
        };
        match kind {
            0..=5 if fits => self.element_step(kind, x, bytes),
            6..=12 if fits => self.move_step(kind, x, bytes),
            13..=16 if fits => self.product_step(kind, x, bytes),
            17..=20 if fits => self.image_step(kind, bytes),
            21..=24 if fits => self.row_step(kind, x, bytes),
            _ => self.repeat(bytes[1]),
        }
    }

    /// Adds a copy of an existing node: the same operation on the same inputs. Inputs of the graph are not
    /// copied.
    fn repeat(&mut self, b: u8) -> Option<NodeId> {
        let node = &self.graph.nodes[b as usize % self.graph.nodes.len()];
        let (op, inputs) = (node.op.clone(), node.inputs.clone());
        if matches!(op, Op::Input { .. }) { None } else { self.push(op, &inputs) }
    }

    /// Adds an elementwise operation with one or two operands.
    fn element_step(&mut self, kind: u8, x: NodeId, [_, b, c, d, e, f]: [u8; 6]) -> Option<NodeId> {
        let shape = self.shape(x);
        let rank = shape.len();
        let binary = [BinaryOp::Add, BinaryOp::Sub, BinaryOp::Mul, BinaryOp::Div][b as usize % 4];
        match kind {
            0 => {
                let ops = [
                    UnaryOp::Neg,
                    UnaryOp::Square,
                    UnaryOp::Sigmoid,
                    UnaryOp::Tanh,
                    UnaryOp::Gelu,
                    UnaryOp::Abs,
                    UnaryOp::Relu,
                    UnaryOp::LeakyRelu { slope: 0.1 },
                ];
                self.unary(ops[b as usize % ops.len()], x)
            }
            1 => {
                let bounded = self.unary(UnaryOp::Tanh, x)?;
                self.unary(UnaryOp::Exp, bounded)
            }
            2 => {
                let positive = self.positive(x)?;
                self.unary(if b.is_multiple_of(2) { UnaryOp::Sqrt } else { UnaryOp::Log }, positive)
            }
            // An operand with fewer axes, or with some axes of size 1, on either side.
            3 | 4 => {
                let mut own = shape.clone();
                for (axis, extent) in own.iter_mut().enumerate() {
                    if (self.apart && axis == 0) || c >> axis & 1 == 1 {
                        *extent = 1;
                    }
                }
                let own = &own[d as usize % (rank + 1)..];
                let mut y = self.variable(own, true)?;
                if e % 3 == 0 {
                    y = self.unary(UnaryOp::Tanh, y)?;
                }
                if binary == BinaryOp::Div {
                    let (over, under) = if f.is_multiple_of(2) { (x, y) } else { (y, x) };
                    let under = self.positive(under)?;
                    return self.push(Op::Binary(binary), &[over, under]);
                }
                self.push(Op::Binary(binary), &if f.is_multiple_of(2) { [x, y] } else { [y, x] })
            }
            // Two nodes, possibly the same one, if their shapes fit.
            5 => {
                let y = self.pick(c);
                // With another number of axes, the batch axis might be aligned with a different axis.
                if self.apart && self.shape(y).len() != rank {
                    return None;
                }
                let y = if binary == BinaryOp::Div { self.positive(y)? } else { y };
                self.push(Op::Binary(binary), &[x, y])
            }
            _ => unreachable!("another kind of step"),
        }
    }

    /// Adds a reduction, a reshape, a transposition, a concatenation or a slice.
    fn move_step(&mut self, kind: u8, x: NodeId, [_, b, c, d, e, f]: [u8; 6]) -> Option<NodeId> {
        let shape = self.shape(x);
        let rank = shape.len();
        let reduction = [ReductionOp::Sum, ReductionOp::Mean, ReductionOp::Max][b as usize % 3];
        let first = usize::from(self.apart);
        match kind {
            // Both sides are repeated in the broadcast.
            6 => {
                let axis = first + c as usize % (rank - first);
                let reduce = Op::Reduce { reduction, axes: vec![axis], keep: true };
                let reduced = self.push(reduce, &[x])?;
                let mut own = vec![1; rank];
                own[axis] = 1 + d as usize % 3;
                let y = self.variable(&own, true)?;
                self.push(Op::Binary(BinaryOp::Mul), &[reduced, y])
            }
            7 | 8 => {
                let axes: Vec<usize> = (first..rank).filter(|axis| c >> axis & 1 == 1).collect();
                self.push(Op::Reduce { reduction, axes, keep: d.is_multiple_of(2) }, &[x])
            }
            9 => {
                let elements: usize = shape[1..].iter().product();
                let divisor =
                    (1 + b as usize % 4..=elements).find(|n| elements.is_multiple_of(*n)).unwrap_or(1);
                let shape = match c % 3 {
                    0 => vec![elements],
                    1 => vec![divisor, elements / divisor],
                    _ => vec![elements / divisor, 1, divisor],
                };
                self.push(Op::Reshape { shape: Shape(shape) }, &[x])
            }
            10 => {
                let mut axes: Vec<usize> = (0..rank).collect();
                for axis in first..rank {
                    axes.swap(axis, first + usize::from([b, c, d, e, f][axis % 5]) % (rank - first));
                }
                self.push(Op::Transpose { axes }, &[x])
            }
            11 => {
                let axis = first + c as usize % (rank - first);
                let parts: Vec<NodeId> = self
                    .pool
                    .iter()
                    .copied()
                    .filter(|&other| {
                        self.shape(other) == shape && (!self.apart || self.of_data[other.index()])
                    })
                    .collect();
                let other = parts[d as usize % parts.len()];
                let length = 1 + e as usize % shape[axis];
                let cut = self.push(Op::Slice { axis, start: shape[axis] - length, length }, &[x])?;
                self.push(
                    Op::Concat { axis },
                    [&[x, cut][..], &[other, x][..], &[cut, other, cut][..]][f as usize % 3],
                )
            }
            12 => {
                let axis = first + c as usize % (rank - first);
                let start = d as usize % shape[axis];
                let length = 1 + e as usize % (shape[axis] - start);
                self.push(Op::Slice { axis, start, length }, &[x])
            }
            _ => unreachable!("another kind of step"),
        }
    }

    /// Adds a matrix product, a bias or an embedding.
    fn product_step(&mut self, kind: u8, x: NodeId, [_, b, c, d, e, f]: [u8; 6]) -> Option<NodeId> {
        let shape = self.shape(x);
        let rank = shape.len();
        match kind {
            // All rows are multiplied with one matrix.
            13 => {
                let (transpose_a, transpose_b) =
                    (c.is_multiple_of(2) && rank == 2 && !self.apart, d % 2 == 1);
                let k = shape[rank - 1 - usize::from(transpose_a)];
                let n = 1 + e as usize % 4;
                let y = self.variable(&if transpose_b { [n, k] } else { [k, n] }, true)?;
                self.push(Op::MatMul { transpose_a, transpose_b }, &[x, y])
            }
            // A batch of products of x with a variable, or of x with itself. There is one product for each
            // index of the leading axes.
            14 => {
                let (transpose_a, transpose_b) = (c % 2 == 1, d % 2 == 1);
                let outer = &shape[..rank - 2];
                let k = shape[rank - 1 - usize::from(transpose_a)];
                if self.apart || f.is_multiple_of(2) {
                    if e % 3 == 1 {
                        return self.attention(x, d.is_multiple_of(2));
                    }
                    // x·xᵀ or xᵀ·x. Some choices add a causal softmax.
                    let [transpose_a, transpose_b] = [c % 2 == 1, c.is_multiple_of(2)];
                    let square = self.push(Op::MatMul { transpose_a, transpose_b }, &[x, x])?;
                    return match e % 3 {
                        0 => self.push(Op::Softmax { causal: true }, &[square]),
                        _ => Some(square),
                    };
                }
                let n = 1 + e as usize % 3;
                let last = if transpose_b { [n, k] } else { [k, n] };
                let y = self.variable(&[outer, &last].concat(), true)?;
                self.push(Op::MatMul { transpose_a, transpose_b }, &[x, y])
            }
            15 => {
                let bias = self.variable(&shape[rank - 1..], true)?;
                let biased = self.push(Op::BiasAdd, &[x, bias])?;
                if b.is_multiple_of(2) { self.unary(UnaryOp::Relu, biased) } else { Some(biased) }
            }
            16 => {
                let rows = 1 + b as usize % 3;
                let example = [Shape::scalar(), [2].into(), [2, 2].into()][c as usize % 3].clone();
                let ids = self.column(TensorSpec::i32(example), Some(rows));
                let table = self.variable(&[rows, 1 + d as usize % 3], true)?;
                self.push(Op::Embedding, &[table, ids])
            }
            _ => unreachable!("another kind of step"),
        }
    }

    /// Adds attention of x to itself, whose values are those of x times a variable.
    fn attention(&mut self, x: NodeId, causal: bool) -> Option<NodeId> {
        let size = *self.shape(x).last()?;
        let scale = self.variable(&[size], true)?;
        let values = self.push(Op::Binary(BinaryOp::Mul), &[x, scale])?;
        let scores = self.push(Op::MatMul { transpose_a: false, transpose_b: true }, &[x, x])?;
        let weights = self.push(Op::Softmax { causal }, &[scores])?;
        self.push(Op::MatMul { transpose_a: false, transpose_b: false }, &[weights, values])
    }

    /// Adds a convolution or a pooling.
    fn image_step(&mut self, kind: u8, [a, _, c, d, e, f]: [u8; 6]) -> Option<NodeId> {
        let padding = [Padding::Valid, Padding::Same][c as usize % 2];
        let stride = [1 + d as usize % 3, 1 + d as usize / 3 % 3];
        let window = [1 + e as usize % 3, 1 + e as usize / 3 % 3];
        match kind {
            17 => {
                let image = self.image(a);
                let channels = self.shape(image)[3];
                let kernel = self.variable(&[window[0], window[1], channels, 1 + f as usize % 3], true)?;
                self.push(Op::Conv2d(Stride { stride, padding }), &[image, kernel])
            }
            18 | 19 => {
                let image = self.image(a);
                let geometry = Window { window, stride, padding };
                let op = if kind == 18 { Op::MaxPool2d(geometry) } else { Op::AveragePool2d(geometry) };
                self.push(op, &[image])
            }
            20 => {
                let image = self.image(a);
                self.push(Op::GlobalAveragePool, &[image])
            }
            _ => unreachable!("another kind of step"),
        }
    }

    /// Adds a normalisation, a dropout or a softmax, or an input of labels that are converted to floats.
    fn row_step(&mut self, kind: u8, x: NodeId, [_, b, c, _, _, _]: [u8; 6]) -> Option<NodeId> {
        let shape = self.shape(x);
        let rank = shape.len();
        match kind {
            21 => {
                let channels = shape[rank - 1];
                let known = self.norms.iter().find(|norm| self.shape(norm[0]) == [channels]).copied();
                let [gamma, beta, mean, variance] =
                    known.filter(|_| b.is_multiple_of(2)).unwrap_or_else(|| {
                        let norm = [true, true, false, false].map(|trained| {
                            self.variable(&[channels], trained).expect("as small as what there is")
                        });
                        self.norms.push(norm);
                        norm
                    });
                let op = Op::BatchNorm { epsilon: 0.1, momentum: [0.0, 0.9, 0.99, 1.0][c as usize % 4] };
                self.push(op, &[x, gamma, beta, mean, variance])
            }
            22 => {
                let [gamma, beta] = [(); 2]
                    .map(|()| self.variable(&shape[rank - 1..], true).expect("as small as what there is"));
                self.push(Op::LayerNorm { epsilon: 0.1 }, &[x, gamma, beta])
            }
            23 => self.push(Op::Dropout { rate: [0.0, 0.3, 0.6][b as usize % 3] }, &[x]),
            24 => match b % 3 {
                0 => self.push(Op::LogSoftmax, &[x]),
                1 => {
                    let labels = self.column(TensorSpec::i32([]), Some(3));
                    self.push(Op::ToFloat, &[labels])
                }
                _ => self.push(Op::Softmax { causal: false }, &[x]),
            },
            _ => unreachable!("another kind of step"),
        }
    }

    /// Returns a node from the pool whose output has 4 axes, as a batch of images has.
    fn image(&self, choice: u8) -> NodeId {
        let images: Vec<NodeId> =
            self.pool.iter().copied().filter(|&node| self.shape(node).len() == 4).collect();
        let images: Vec<NodeId> =
            images.into_iter().filter(|&node| !self.apart || self.of_data[node.index()]).collect();
        images[images.len() - 1 - choice as usize % images.len()]
    }

    /// Adds a scalar node that is computed from a node of the pool: a loss if the chosen loss fits that
    /// node's shape, otherwise the mean of that node's squares. Returns the scalar.
    fn scalar(&mut self, kind: u8, choice: u8, more: u8) -> NodeId {
        let x = self.pick(choice);
        let shape = self.shape(x);
        let loss = match (kind % 6, &shape[..]) {
            (0, [batch, rows @ .., classes]) if *batch == self.examples => {
                let labels = self.column(TensorSpec::i32(Shape(rows.to_vec())), Some(*classes));
                self.push(Op::SoftmaxCrossEntropy, &[x, labels])
            }
            (1, [batch, own @ ..]) if *batch == self.examples && !own.is_empty() => {
                let labels = self.column(TensorSpec::f32(Shape(own.to_vec())), Some(1));
                self.push(Op::SoftmaxCrossEntropy, &[x, labels])
            }
            (2, [batch, own @ ..]) if *batch == self.examples => {
                let labels = self.column(TensorSpec::f32(Shape(own.to_vec())), Some(1));
                self.push(Op::SigmoidCrossEntropy, &[x, labels])
            }
            (3, [batch, own @ ..]) if *batch == self.examples => {
                let other = self.column(TensorSpec::f32(Shape(own.to_vec())), None);
                self.push(Op::MeanSquaredError, &if more.is_multiple_of(2) { [x, other] } else { [other, x] })
            }
            (4, _) if !self.apart => {
                let other = self.variable(&shape, true).expect("as small as what there is");
                self.push(Op::MeanSquaredError, &if more.is_multiple_of(2) { [x, other] } else { [other, x] })
            }
            _ => None,
        };
        loss.unwrap_or_else(|| {
            let mut square = self.unary(UnaryOp::Square, x).unwrap();
            if !shape.is_empty() {
                let axes = (0..shape.len()).collect();
                let reduce = Op::Reduce { reduction: ReductionOp::Mean, axes, keep: false };
                square = self.push(reduce, &[square]).unwrap();
            }
            square
        })
    }
}
