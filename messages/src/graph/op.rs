//! The operations, their inputs and outputs. Batch first; every tensor is row-major.
//!
//! Has only the operations in which models are written. Knows no gradients: the worker derives them, so that
//! nothing of the backward pass is sent or has to be checked.

use serde::{Deserialize, Serialize};

use super::element::{BinaryOp, ReductionOp, UnaryOp};
use super::geometry::{Stride, Window};
use crate::id::VariableId;
use crate::tensor::{Shape, TensorSpec};

/// An operation: what a node computes from its inputs. B is the batch; `…` stands for any number of axes, or
/// none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Op {
    /// () → `[B, …]`: the data's column of the node's name.
    Input {
        /// The tensor of one example.
        example: TensorSpec,
    },
    /// () → the variable's shape: its value, as pulled.
    Variable {
        /// The variable.
        variable: VariableId,
    },
    /// () → `[]`: a constant number.
    Constant {
        /// The number.
        value: f32,
    },
    /// i32 → f32 of the same shape.
    ToFloat,

    /// x → the same shape: a function of each element.
    Unary(UnaryOp),
    /// a, b → a ∘ b, element by element: shapes are broadcast as in NumPy, aligned at the last axis, with
    /// missing axes and axes of extent 1 repeated.
    Binary(BinaryOp),
    /// x → x without these axes: the sum, mean or maximum along them.
    Reduce {
        /// The function.
        reduction: ReductionOp,
        /// The axes, ascending; axis 0 is the batch.
        axes: Vec<usize>,
        /// Whether the axes are kept with extent 1.
        #[serde(default)]
        keep: bool,
    },

    /// `[B, …]` → `[B, shape…]`: the same elements, with each example in another shape.
    Reshape {
        /// The shape of one example.
        shape: Shape,
    },
    /// x → x with its axis `axes[i]` as axis i.
    Transpose {
        /// The axes, each once.
        axes: Vec<usize>,
    },
    /// Two or more tensors that differ along one axis only → their concatenation along it.
    Concat {
        /// The axis; 0 is the batch.
        axis: usize,
    },
    /// x → `length` elements from `start` on, along one axis.
    Slice {
        /// The axis; 0 is the batch.
        axis: usize,
        /// The first element taken.
        start: usize,
        /// The number of elements taken.
        length: usize,
    },

    /// `[…, m, k]`, `[…, k, n]` → `[…, m, n]`: a matrix product for each position along the leading axes,
    /// which must be equal. Or `[…, k]`, `[k, n]` → `[…, n]`: all rows times one matrix. A transposed operand
    /// has its last two axes exchanged.
    MatMul {
        /// Whether the first operand is `[…, k, m]`.
        #[serde(default)]
        transpose_a: bool,
        /// Whether the second operand is `[…, n, k]`.
        #[serde(default)]
        transpose_b: bool,
    },
    /// `[…, n]`, `[n]` → `[…, n]`: adds the second to every row of the first.
    BiasAdd,
    /// table `[rows, n]`, ids i32 `[…]` → `[…, n]`: the row of each id. An id outside the table fails the
    /// step.
    Embedding,

    /// images `[B, h, w, cin]`, kernel `[kh, kw, cin, cout]` → `[B, ho, wo, cout]`: the convolution as usual
    /// in neural networks, without flipping the kernel.
    #[serde(rename = "conv2d")]
    Conv2d(Stride),
    /// images `[B, h, w, c]` → `[B, ho, wo, c]`: the maximum of each window, channel by channel.
    #[serde(rename = "max_pool2d")]
    MaxPool2d(Window),
    /// images `[B, h, w, c]` → `[B, ho, wo, c]`: the mean of the part of each window that lies within the
    /// image.
    #[serde(rename = "average_pool2d")]
    AveragePool2d(Window),
    /// images `[B, h, w, c]` → `[B, c]`: the mean of each channel.
    GlobalAveragePool,

    /// x `[…, c]`, gamma `[c]`, beta `[c]`, moving mean `[c]`, moving variance `[c]` → `[…, c]`: each channel
    /// with mean 0 and variance 1, times gamma, plus beta (Ioffe & Szegedy 2015). Training uses the mean and
    /// variance of the batch, and moves the moving ones, which are untrained variables, towards them;
    /// evaluation uses the moving ones.
    ///
    /// With several devices, each normalises its own part of the batch, and the moving ones go towards the
    /// mean of the parts. Several workers that update asynchronously from the same values add their steps, so
    /// momentum should be well above 1 − 1 / workers. A variance below 0 counts as 0.
    BatchNorm {
        /// The term added to the variance; above 0.
        epsilon: f32,
        /// The share of a moving value that is kept in a step, from 0 to 1.
        momentum: f32,
    },
    /// x `[…, n]`, gamma `[n]`, beta `[n]` → `[…, n]`: each row with mean 0 and variance 1, times gamma, plus
    /// beta (Ba et al. 2016).
    LayerNorm {
        /// The term added to the variance; above 0.
        epsilon: f32,
    },
    /// x → the same shape. In training, each element is 0 with probability `rate`, else divided by 1 − rate
    /// (Srivastava et al. 2014); in evaluation, x. The choice depends on the job's seed, the worker, its
    /// step, the node and the element, so that several devices drop the same elements as one if axis 0 is the
    /// batch.
    Dropout {
        /// The probability, from 0 to less than 1.
        rate: f32,
    },
    /// x `[…, n]` → the same shape: exp(x) / Σ exp(x) of each row.
    Softmax {
        /// Whether x is `[…, n, n]` and only the first i + 1 elements of row i count; the others become 0.
        #[serde(default)]
        causal: bool,
    },
    /// x `[…, n]` → the same shape: the logarithm of the softmax of each row.
    LogSoftmax,

    /// logits `[…, classes]`, labels i32 `[…]` or f32 `[…, classes]` → `[]`: the mean over all rows of −log
    /// softmax(logits)`[label]`, or −Σ labels · log softmax(logits).
    SoftmaxCrossEntropy,
    /// logits `[…]`, labels f32 `[…]` from 0 to 1 → `[]`: the mean over all elements of −log of the
    /// probability that sigmoid(logit) gives to the label.
    SigmoidCrossEntropy,
    /// a, b of one shape → `[]`: the mean of (a − b)².
    MeanSquaredError,

    /// logits `[…, classes]`, labels i32 `[…]` → `[]`: the share of rows whose largest logit, or the first of
    /// several equal ones, is the label's.
    Accuracy,
    /// logits `[…, classes]`, labels i32 `[…]` → `[]`: the share of rows with fewer than `k` logits that rank
    /// before the label's: larger ones, and equal ones of an earlier class. With a `k` of 1 it is the
    /// accuracy.
    TopK {
        /// The number of logits; at least 1.
        k: usize,
    },
    /// logits `[…]`, labels i32 `[…]` of 0 or 1 → `[2, bins]`: the counts of label 0 and of label 1 whose
    /// sigmoid(logit) lies in each of the bins from 0 to 1. As a metric it is the area under the ROC curve of
    /// all examples together; ties within a bin count one half.
    #[serde(rename = "auc")]
    AucCounts {
        /// The number of bins, from 2 to 65 536.
        bins: usize,
    },
}

/// The number of inputs that an operation takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    /// Exactly this many.
    Exactly(usize),
    /// This many or more.
    AtLeast(usize),
}

impl Op {
    /// Returns the operation's name in errors and job files.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Input { .. } => "input",
            Self::Variable { .. } => "variable",
            Self::Constant { .. } => "constant",
            Self::ToFloat => "to_float",
            Self::Unary(op) => op.name(),
            Self::Binary(op) => op.name(),
            Self::Reduce { reduction, .. } => reduction.name(),
            Self::Reshape { .. } => "reshape",
            Self::Transpose { .. } => "transpose",
            Self::Concat { .. } => "concat",
            Self::Slice { .. } => "slice",
            Self::MatMul { .. } => "mat_mul",
            Self::BiasAdd => "bias_add",
            Self::Embedding => "embedding",
            Self::Conv2d(_) => "conv2d",
            Self::MaxPool2d(_) => "max_pool2d",
            Self::AveragePool2d(_) => "average_pool2d",
            Self::GlobalAveragePool => "global_average_pool",
            Self::BatchNorm { .. } => "batch_norm",
            Self::LayerNorm { .. } => "layer_norm",
            Self::Dropout { .. } => "dropout",
            Self::Softmax { .. } => "softmax",
            Self::LogSoftmax => "log_softmax",
            Self::SoftmaxCrossEntropy => "softmax_cross_entropy",
            Self::SigmoidCrossEntropy => "sigmoid_cross_entropy",
            Self::MeanSquaredError => "mean_squared_error",
            Self::Accuracy => "accuracy",
            Self::TopK { .. } => "top_k",
            Self::AucCounts { .. } => "auc",
        }
    }

    /// Returns the number of inputs that the operation takes.
    pub const fn arity(&self) -> Arity {
        Arity::Exactly(match self {
            Self::Input { .. } | Self::Variable { .. } | Self::Constant { .. } => 0,
            Self::ToFloat
            | Self::Unary(_)
            | Self::Reduce { .. }
            | Self::Reshape { .. }
            | Self::Transpose { .. }
            | Self::Slice { .. }
            | Self::MaxPool2d(_)
            | Self::AveragePool2d(_)
            | Self::GlobalAveragePool
            | Self::Dropout { .. }
            | Self::Softmax { .. }
            | Self::LogSoftmax => 1,
            Self::Binary(_)
            | Self::MatMul { .. }
            | Self::BiasAdd
            | Self::Embedding
            | Self::Conv2d(_)
            | Self::SoftmaxCrossEntropy
            | Self::SigmoidCrossEntropy
            | Self::MeanSquaredError
            | Self::Accuracy
            | Self::TopK { .. }
            | Self::AucCounts { .. } => 2,
            Self::LayerNorm { .. } => 3,
            Self::BatchNorm { .. } => 5,
            Self::Concat { .. } => return Arity::AtLeast(2),
        })
    }
}

impl Arity {
    /// Returns true if this number of inputs is allowed.
    pub const fn allows(self, inputs: usize) -> bool {
        match self {
            Self::Exactly(count) => inputs == count,
            Self::AtLeast(count) => inputs >= count,
        }
    }
}

impl std::fmt::Display for Arity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exactly(count) => write!(f, "{count}"),
            Self::AtLeast(count) => write!(f, "{count} or more"),
        }
    }
}
