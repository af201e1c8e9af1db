//! The graph as the worker runs it: kernels with their shapes resolved, and the values that go from one to
//! the next. What is computed twice is computed once: the same kernel on the same inputs, which gives the
//! same shapes, is the same node.

use std::collections::BTreeMap;

use pushpull_kernels::cpu::{AxisPart, Binary, Broadcast, Conv2d, Pool2d, Product, Reduction, Step, Unary};
use pushpull_messages::id::{NodeId, VariableId};

/// What a node computes. The comments name its inputs and outputs, in order.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kernel {
    /// () → one column of the batch.
    Column(usize),
    /// () → a variable's value.
    Variable(VariableId),
    /// () → one number.
    Constant(f32),
    /// () → the adjoint of the loss: what share of the whole batch this device has.
    Share,
    /// x → the same elements in another shape.
    View,
    /// x → a copy of it.
    Copy,
    /// Integers → floats.
    ToFloat,

    /// x → f(x).
    Unary(Unary),
    /// What f has saved, dy → dx.
    UnaryGrad(Unary),
    /// a, b → a ∘ b.
    Binary(Binary, Broadcast),
    /// first, operands… → what the steps make of the first. Only fusion makes these.
    Chain(Vec<Step>),
    /// x → reduced to the first shape of the two.
    Reduce(Reduction, Broadcast),
    /// x, its maxima, the maxima's adjoint → x's: shared among equal maxima.
    MaxGrad(Broadcast),
    /// x → repeated from the first shape to the second.
    Expand(Broadcast),
    /// `[rows, n]` → `[n]`.
    SumRows,

    Transpose {
        shape: Vec<usize>,
        axes: Vec<usize>,
    },
    /// The parts… → all of them side by side in `shape`.
    Concat {
        shape: Vec<usize>,
        parts: Vec<AxisPart>,
    },
    /// x → a part of it.
    Slice {
        shape: Vec<usize>,
        part: AxisPart,
    },
    /// x → zeros with x as a part.
    Paste {
        shape: Vec<usize>,
        part: AxisPart,
    },

    /// a, b, and a bias if the epilogue has one.
    Product(Factors, Epilogue),
    /// So many products: a's, b's.
    BatchedProduct(usize, Factors),
    /// Table, ids → rows.
    Gather {
        width: usize,
    },
    /// Ids, dy → the table's adjoint.
    Scatter {
        width: usize,
    },

    /// Images, kernel, and a bias if the epilogue has one.
    Conv2d(Conv2d, Epilogue),
    /// Kernel, dy → the images' adjoint.
    Conv2dInputGrad(Conv2d),
    /// Images, dy → the kernel's adjoint.
    Conv2dKernelGrad(Conv2d),
    /// Images → maxima, and where each was: a byte an output.
    MaxPool2d(Pool2d),
    /// Where the maxima were, dy → the images' adjoint.
    MaxPool2dGrad(Pool2d),
    AveragePool2d(Pool2d),
    AveragePool2dGrad(Pool2d),
    /// Images, pixels, channels.
    GlobalAveragePool([usize; 3]),
    GlobalAveragePoolGrad([usize; 3]),

    /// x → the mean and the variance of each channel.
    Moments {
        /// How many rows of how many channels.
        rows: [usize; 2],
    },
    /// Variance → 1 / √(variance + epsilon).
    ReciprocalStddev {
        epsilon: f32,
    },
    /// x, mean, reciprocal stddev, gamma, beta → y.
    BatchNorm,
    /// x, dy, mean, reciprocal stddev, gamma → dx, dgamma, dbeta.
    BatchNormGrad {
        /// How many rows of how many channels.
        rows: [usize; 2],
    },
    /// x, gamma, beta → y, mean and reciprocal stddev of each row.
    LayerNorm {
        epsilon: f32,
    },
    /// x, dy, mean, reciprocal stddev, gamma → dx, dgamma, dbeta.
    LayerNormGrad {
        /// How many rows of how many elements.
        rows: [usize; 2],
    },
    /// x → y, or dy → dx.
    Dropout {
        rate: f32,
        stream: u64,
        /// Elements of one example: a device's part of the batch draws what the whole batch would.
        example: usize,
    },
    /// Rows of so many; of a causal one, row i of each square begins with i + 1 that count.
    Softmax {
        width: usize,
        causal: bool,
    },
    /// y, dy → dx.
    SoftmaxGrad {
        width: usize,
    },
    LogSoftmax {
        width: usize,
    },
    /// y, dy → dx.
    LogSoftmaxGrad {
        width: usize,
    },

    /// Logits, labels → the loss.
    SoftmaxCrossEntropy,
    /// Logits, labels, dloss → dlogits.
    SoftmaxCrossEntropyGrad,
    /// Logits, labels → the loss.
    SoftmaxCrossEntropyDense {
        classes: usize,
    },
    /// Logits, labels, dloss → dlogits.
    SoftmaxCrossEntropyDenseGrad {
        classes: usize,
    },
    /// Logits, labels → the loss.
    SigmoidCrossEntropy,
    /// Logits, labels, dloss → dlogits.
    SigmoidCrossEntropyGrad,
    /// a, b → the loss.
    MeanSquaredError,
    /// a, b, dloss → da.
    MeanSquaredErrorGrad,
    /// Logits, labels → the share of rows.
    TopK {
        k: usize,
    },
    /// Logits, labels → counts.
    AucCounts,
}

/// The sizes of a product of `[m, k]` and `[k, n]`, and which of the two is stored the other way round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Factors {
    pub m: usize,
    pub k: usize,
    pub n: usize,
    pub transpose_a: bool,
    pub transpose_b: bool,
}

impl Factors {
    pub fn product(&self) -> Product {
        let Self { m, k, n, transpose_a, transpose_b } = *self;
        Product::new([m, k, n], transpose_a, transpose_b).expect("tensors are bounded, by inference")
    }
}

/// What is taken into a product or a convolution from behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Epilogue {
    Bare,
    Bias,
    BiasRelu,
}

/// One output of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Value {
    pub node: usize,
    pub output: usize,
}

/// One kernel, on what it works, and what it gives.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub kernel: Kernel,
    pub inputs: Vec<Value>,
    /// The shape of each output, in elements of 4 bytes.
    pub outputs: Vec<Vec<usize>>,
    /// The node of the graph that it is there for.
    pub origin: NodeId,
}

/// A list of nodes, inputs first.
#[derive(Debug, Default)]
pub(super) struct Ir {
    pub nodes: Vec<Node>,
    known: BTreeMap<(String, Vec<Value>), usize>,
}

impl Ir {
    /// The first output of a node that computes this: one that is there already, if there is one.
    pub fn push(
        &mut self,
        origin: NodeId,
        kernel: Kernel,
        inputs: &[Value],
        outputs: impl IntoIterator<Item = Vec<usize>>,
    ) -> Value {
        let outputs: Vec<Vec<usize>> = outputs.into_iter().collect();
        // Neither a sum of rows nor a reduction nor a scatter says how its output looks.
        let key = (format!("{kernel:?}{outputs:?}"), inputs.to_vec());
        let next = self.nodes.len();
        let node = *self.known.entry(key).or_insert(next);
        if node == next {
            self.nodes.push(Node { kernel, inputs: inputs.to_vec(), outputs, origin });
        }
        Value { node, output: 0 }
    }

    pub fn shape(&self, value: Value) -> &[usize] {
        &self.nodes[value.node].outputs[value.output]
    }

    pub fn elements(&self, value: Value) -> usize {
        self.shape(value).iter().product()
    }

    /// The value whose memory a value has: itself, or what was given another shape.
    pub fn root(&self, mut value: Value) -> Value {
        while self.nodes[value.node].kernel == Kernel::View {
            value = self.nodes[value.node].inputs[0];
        }
        value
    }
}

impl Value {
    /// Another output of the same node.
    pub fn output(self, output: usize) -> Self {
        Self { output, ..self }
    }
}
