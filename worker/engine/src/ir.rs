//! The intermediate representation of a graph: kernels with resolved shapes, and the values that they pass
//! on. Equal kernels with equal inputs share one node, so nothing is computed twice. This module must not
//! depend on memory.

use std::collections::BTreeMap;

use pushpull_cuda::{Attention, Precision};
use pushpull_kernels::cpu::{AxisPart, Binary, Broadcast, Conv2d, Pool2d, Product, Reduction, Step, Unary};
use pushpull_messages::id::{NodeId, VariableId};

/// The computation of a node. Each variant's comment lists its inputs → its outputs, in order.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kernel {
    /// () → one column of the batch.
    Column(usize),
    /// () → a variable's value.
    Variable(VariableId),
    /// () → a constant number.
    Constant(f32),
    /// () → the adjoint of the loss: this device's share of the examples of the whole batch, as a fraction.
    Share,
    /// x → the same elements in another shape.
    View,
    /// x → a copy of it.
    Copy,
    /// Integers → floats.
    ToFloat,

    /// x → f(x).
    Unary(Unary),
    /// The saved x or f(x), dy → dx.
    UnaryGrad(Unary),
    /// a, b → a ∘ b.
    Binary(Binary, Broadcast),
    /// The first value, the operands… → the result of applying the steps to the first value. Only fusion
    /// creates this kernel.
    Chain(Vec<Step>),
    /// x → x reduced to the first of the broadcast's two shapes.
    Reduce(Reduction, Broadcast),
    /// x, its maxima, the adjoint of the maxima → the adjoint of x. Equal maxima get equal parts of the
    /// adjoint.
    MaxGrad(Broadcast),
    /// x → x repeated from the broadcast's first shape to its second one.
    Expand(Broadcast),
    /// x of the shape `[rows, n]` → the sum of its rows, `[n]`.
    SumRows,

    Transpose {
        shape: Vec<usize>,
        axes: Vec<usize>,
    },
    /// The parts… → their concatenation, a tensor of the shape `shape`.
    Concat {
        shape: Vec<usize>,
        parts: Vec<AxisPart>,
    },
    /// x → a part of it.
    Slice {
        shape: Vec<usize>,
        part: AxisPart,
    },
    /// x → zeros of the shape `shape`, in which x replaces the part `part`.
    Paste {
        shape: Vec<usize>,
        part: AxisPart,
    },

    /// a, b and, if the epilogue has one, a bias → epilogue(a · b).
    Product(Factors, Epilogue),
    /// Several matrices a, as many matrices b → the product of each pair. The fields are the number of
    /// products, and the sizes of one product.
    BatchedProduct(usize, Factors),
    /// x → x as `precision` says, two numbers in 4 bytes. Only [`narrow`](super::narrow) creates this kernel.
    Narrow {
        elements: usize,
        precision: Precision,
    },
    /// Embedding table, ids → the rows with these ids.
    Gather {
        width: usize,
    },
    /// Ids, dy → the table's adjoint.
    Scatter {
        width: usize,
    },

    /// Images, kernel and, if the epilogue has one, a bias → the convolution.
    Conv2d(Conv2d, Epilogue),
    /// Kernel, dy → the images' adjoint.
    Conv2dInputGrad(Conv2d),
    /// Images, dy → the kernel's adjoint.
    Conv2dKernelGrad(Conv2d),
    /// Images → maxima, and the position of each maximum in its window (one byte per output element).
    MaxPool2d(Pool2d),
    /// The positions of the maxima, dy → the images' adjoint.
    MaxPool2dGrad(Pool2d),
    AveragePool2d(Pool2d),
    AveragePool2dGrad(Pool2d),
    /// Images → the mean of each channel. The field holds the number of images, the number of pixels in an
    /// image, and the number of channels.
    GlobalAveragePool([usize; 3]),
    GlobalAveragePoolGrad([usize; 3]),

    /// x → the mean and the variance of each channel.
    Moments {
        /// The number of rows, and the number of channels in each row.
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
        /// The number of rows, and the number of channels in each row.
        rows: [usize; 2],
    },
    /// x, gamma, beta → y, and the mean and the reciprocal stddev of each row.
    LayerNorm {
        epsilon: f32,
    },
    /// x, dy, mean, reciprocal stddev, gamma → dx, dgamma, dbeta.
    LayerNormGrad {
        /// The number of rows, and the number of elements in each row.
        rows: [usize; 2],
    },
    /// x → y, or dy → dx.
    Dropout {
        rate: f32,
        stream: u64,
        /// The number of elements in one example. A device needs it to draw the same random numbers for its
        /// examples as one device with the whole batch would draw.
        example: usize,
    },
    /// x → y, for rows of `width` elements. If `causal` is true, the rows form square matrices, and row i of
    /// a matrix uses only its first i + 1 elements.
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

    /// q, k, v → softmax(q·kᵀ)·v, and for each query the logarithm of the sum of the exponentials of its
    /// scores. Only [`attend`](super::attend) creates this kernel.
    Attention(Attention),
    /// q, k, v, both outputs of the attention, the adjoint of the first → dv, dk, dq. Only
    /// [`attend`](super::attend) creates this kernel.
    AttentionGrad(Attention),

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
    /// Logits, labels → the fraction of rows in which the label's logit is among the k largest.
    TopK {
        k: usize,
    },
    /// Logits, labels → the number of examples of each class in each bin.
    AucCounts,
}

/// The sizes of the product of an `[m, k]` and a `[k, n]` matrix. Each flag is true if the factor that it
/// names is stored transposed.
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

/// The operations that a product or a convolution applies to its output before storing it.
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

/// A kernel with its inputs, and the shapes of its outputs.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub kernel: Kernel,
    pub inputs: Vec<Value>,
    /// The shape of each output, counted in elements of 4 bytes, even if the output consists of single
    /// bytes.
    pub outputs: Vec<Vec<usize>>,
    /// The node of the graph for which this node was created.
    pub origin: NodeId,
}

/// A list of nodes. Each node comes after the nodes whose outputs it reads.
#[derive(Clone, Debug, Default)]
pub(super) struct Ir {
    pub nodes: Vec<Node>,
    known: BTreeMap<(String, Vec<Value>), usize>,
}

impl Ir {
    /// Returns the first output of a node that computes this kernel on these inputs: an existing node if
    /// there is one, otherwise a new one.
    pub fn push(
        &mut self,
        origin: NodeId,
        kernel: Kernel,
        inputs: &[Value],
        outputs: impl IntoIterator<Item = Vec<usize>>,
    ) -> Value {
        let outputs: Vec<Vec<usize>> = outputs.into_iter().collect();
        // The output shapes are part of the key, because some kernels do not contain them: row sums,
        // reductions and scatters.
        let key = (format!("{kernel:?}{outputs:?}"), inputs.to_vec());
        let next = self.nodes.len();
        let node = *self.known.entry(key).or_insert(next);
        if node == next {
            self.nodes.push(Node { kernel, inputs: inputs.to_vec(), outputs, origin });
        }
        Value { node, output: 0 }
    }

    /// Returns the sum of two values of equal shape. The sum has the origin of `b`.
    pub fn add(&mut self, a: Value, b: Value) -> Value {
        let (origin, shape) = (self.nodes[b.node].origin, self.shape(b).to_vec());
        let alike = Broadcast::new(&shape, &shape).expect("a shape fits itself");
        self.push(origin, Kernel::Binary(Binary::Add, alike), &[a, b], [shape])
    }

    pub fn shape(&self, value: Value) -> &[usize] {
        &self.nodes[value.node].outputs[value.output]
    }

    pub fn elements(&self, value: Value) -> usize {
        self.shape(value).iter().product()
    }

    /// Returns the value that owns the memory of `value`: for a view, the value that it views; otherwise
    /// `value` itself.
    pub fn root(&self, mut value: Value) -> Value {
        while self.nodes[value.node].kernel == Kernel::View {
            value = self.nodes[value.node].inputs[0];
        }
        value
    }
}

impl Kernel {
    /// Returns the name of the kernel, without its settings.
    pub fn name(&self) -> String {
        let text = format!("{self:?}");
        text.chars().take_while(|letter| letter.is_ascii_alphanumeric()).collect()
    }
}

impl Value {
    /// Returns the output with the index `output` of the same node.
    pub fn output(self, output: usize) -> Self {
        Self { output, ..self }
    }
}
