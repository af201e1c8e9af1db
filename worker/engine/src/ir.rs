//! The graph as kernels, with their shapes resolved, and the values between them. The same kernel on the same
//! inputs is the same node, so nothing is computed twice. Knows no memory.

use std::collections::BTreeMap;

use pushpull_kernels::cpu::{AxisPart, Binary, Broadcast, Conv2d, Pool2d, Product, Reduction, Step, Unary};
use pushpull_messages::id::{NodeId, VariableId};

/// The computation of a node. The comments name its inputs and outputs, in order.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kernel {
    /// () → one column of the batch.
    Column(usize),
    /// () → a variable's value.
    Variable(VariableId),
    /// () → one number.
    Constant(f32),
    /// () → the adjoint of the loss: this device's share of the whole batch.
    Share,
    /// x → the same elements in another shape.
    View,
    /// x → a copy of it.
    Copy,
    /// Integers → floats.
    ToFloat,

    /// x → f(x).
    Unary(Unary),
    /// The input or output that f saved, dy → dx.
    UnaryGrad(Unary),
    /// a, b → a ∘ b.
    Binary(Binary, Broadcast),
    /// first, operands… → the result of the steps on the first. Only fusion makes this kernel.
    Chain(Vec<Step>),
    /// x → reduced to the first shape of the two.
    Reduce(Reduction, Broadcast),
    /// x, its maxima, the maxima's adjoint → the adjoint of x, shared among equal maxima.
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
    /// The batch size, and the sizes of each product: a's, b's → products.
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
    /// Images → maxima, and the position of each, one byte for each output.
    MaxPool2d(Pool2d),
    /// The positions of the maxima, dy → the images' adjoint.
    MaxPool2dGrad(Pool2d),
    AveragePool2d(Pool2d),
    AveragePool2dGrad(Pool2d),
    /// Images, pixels, channels.
    GlobalAveragePool([usize; 3]),
    GlobalAveragePoolGrad([usize; 3]),

    /// x → the mean and the variance of each channel.
    Moments {
        /// The number of rows, and of channels in each.
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
        /// The number of rows, and of channels in each.
        rows: [usize; 2],
    },
    /// x, gamma, beta → y, mean and reciprocal stddev of each row.
    LayerNorm {
        epsilon: f32,
    },
    /// x, dy, mean, reciprocal stddev, gamma → dx, dgamma, dbeta.
    LayerNormGrad {
        /// The number of rows, and of elements in each.
        rows: [usize; 2],
    },
    /// x → y, or dy → dx.
    Dropout {
        rate: f32,
        stream: u64,
        /// The elements of one example, so that a device draws the same numbers for its part as the whole
        /// batch would.
        example: usize,
    },
    /// x → y, for rows of `width` elements. If causal, only the first i + 1 elements count in row i of each
    /// square.
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
    /// Logits, labels → the share of rows whose label is among the k largest logits.
    TopK {
        k: usize,
    },
    /// Logits, labels → the counts of each class in each bin.
    AucCounts,
}

/// The sizes of a product of `[m, k]` and `[k, n]`, and whether each factor is stored transposed.
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

/// The operations that a product or a convolution applies to its output.
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

/// A kernel with its inputs and outputs.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub kernel: Kernel,
    pub inputs: Vec<Value>,
    /// The shape of each output, in elements of 4 bytes.
    pub outputs: Vec<Vec<usize>>,
    /// The node of the graph that it belongs to.
    pub origin: NodeId,
}

/// A list of nodes, inputs first.
#[derive(Debug, Default)]
pub(super) struct Ir {
    pub nodes: Vec<Node>,
    known: BTreeMap<(String, Vec<Value>), usize>,
}

impl Ir {
    /// Returns the first output of a node that computes this: an existing node if there is one, or else a new
    /// one.
    pub fn push(
        &mut self,
        origin: NodeId,
        kernel: Kernel,
        inputs: &[Value],
        outputs: impl IntoIterator<Item = Vec<usize>>,
    ) -> Value {
        let outputs: Vec<Vec<usize>> = outputs.into_iter().collect();
        // The kernels of row sums, reductions and scatters do not contain the shape of their output.
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

    /// Returns the value whose memory a value uses: itself, or the value that it views with another shape.
    pub fn root(&self, mut value: Value) -> Value {
        while self.nodes[value.node].kernel == Kernel::View {
            value = self.nodes[value.node].inputs[0];
        }
        value
    }
}

impl Value {
    /// Returns another output of the same node.
    pub fn output(self, output: usize) -> Self {
        Self { output, ..self }
    }
}
