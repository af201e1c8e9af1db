//! The operations: what each takes and gives. Batch first; every tensor is row-major.
//!
//! Only what a model is written in stands here. Gradients are the worker's matter: it differentiates what it is
//! given, so that nothing of the backward pass travels or has to be checked.

use serde::{Deserialize, Serialize};

use super::element::{BinaryOp, ReductionOp, UnaryOp};
use super::geometry::{Stride, Window};
use crate::id::VariableId;
use crate::tensor::{Shape, TensorSpec};

/// What a node computes from its inputs. B is the batch; `…` stands for any axes, none included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Op {
    /// () → `[B, …]`: the data's column of the node's name.
    Input {
        /// One example.
        example: TensorSpec,
    },
    /// () → the variable's shape: its value, as pulled.
    Variable {
        /// Which one.
        variable: VariableId,
    },
    /// () → `[]`: always the same number.
    Constant {
        /// That number.
        value: f32,
    },
    /// i32 → f32 of the same shape.
    ToFloat,

    /// One function of each element: x → the same shape.
    Unary(UnaryOp),
    /// a, b → a ∘ b, element by element: shapes are aligned at the last axis, and an axis of extent 1, or none, is
    /// repeated (as NumPy does).
    Binary(BinaryOp),
    /// x → x without these axes: the sum, mean or maximum along them.
    Reduce {
        /// Which of the three.
        reduction: ReductionOp,
        /// Rising; axis 0 is the batch.
        axes: Vec<usize>,
        /// The axes stay, with the extent 1.
        #[serde(default)]
        keep: bool,
    },

    /// `[B, …]` → `[B, shape…]`: the same elements, each example in another shape.
    Reshape {
        /// One example's.
        shape: Shape,
    },
    /// x → x with axis `axes[i]` of it as axis i.
    Transpose {
        /// Each axis once.
        axes: Vec<usize>,
    },
    /// Two or more tensors that differ along one axis only → one behind the other along it.
    Concat {
        /// Which axis; 0 is the batch.
        axis: usize,
    },
    /// x → `length` of it from `start` on, along one axis.
    Slice {
        /// Which axis; 0 is the batch.
        axis: usize,
        /// The first that is taken.
        start: usize,
        /// How many are taken.
        length: usize,
    },

    /// `[…, m, k]`, `[…, k, n]` → `[…, m, n]`: a matrix product for each place along the leading axes, which are the
    /// same. Or `[…, k]`, `[k, n]` → `[…, n]`: all rows times one matrix. A transposed operand is given the other way
    /// round in its last two axes.
    MatMul {
        /// The first operand is `[…, k, m]`.
        #[serde(default)]
        transpose_a: bool,
        /// The second operand is `[…, n, k]`.
        #[serde(default)]
        transpose_b: bool,
    },
    /// `[…, n]`, `[n]` → `[…, n]`: the second added to every row of the first.
    BiasAdd,
    /// table `[rows, n]`, ids i32 `[…]` → `[…, n]`: the row of each id. An id outside of the table fails the step.
    Embedding,

    /// images `[B, h, w, cin]`, kernel `[kh, kw, cin, cout]` → `[B, ho, wo, cout]`: the convolution as the field has
    /// it, without turning the kernel.
    #[serde(rename = "conv2d")]
    Conv2d(Stride),
    /// images `[B, h, w, c]` → `[B, ho, wo, c]`: the maximum of each window, channel by channel.
    #[serde(rename = "max_pool2d")]
    MaxPool2d(Window),
    /// images `[B, h, w, c]` → `[B, ho, wo, c]`: the mean of each window, as far as it lies within the image.
    #[serde(rename = "average_pool2d")]
    AveragePool2d(Window),
    /// images `[B, h, w, c]` → `[B, c]`: the mean of each channel.
    GlobalAveragePool,

    /// x `[…, c]`, gamma `[c]`, beta `[c]`, moving mean `[c]`, moving variance `[c]` → `[…, c]`: each channel with mean
    /// 0 and variance 1, times gamma, plus beta (Ioffe & Szegedy 2015). In training mean and variance are the
    /// batch's, and the moving ones, variables that are not trained, go towards them; in evaluation they are the
    /// moving ones.
    ///
    /// Of several devices each normalises its own part of the batch, and the moving numbers go towards the mean of
    /// theirs. Several workers that update asynchronously from the same numbers add their steps: momentum should be
    /// well above 1 − 1 / workers. A variance that went below 0 counts as 0.
    BatchNorm {
        /// Added to the variance; more than 0.
        epsilon: f32,
        /// What a moving number keeps of itself in a step, from 0 to 1.
        momentum: f32,
    },
    /// x `[…, n]`, gamma `[n]`, beta `[n]` → `[…, n]`: each row with mean 0 and variance 1, times gamma, plus beta (Ba et
    /// al. 2016).
    LayerNorm {
        /// Added to the variance; more than 0.
        epsilon: f32,
    },
    /// x → the same shape. In training each element is 0 with probability `rate`, and else divided by 1 − rate
    /// (Srivastava et al. 2014); which ones are drawn from the job's seed, the worker, its step, the node and the element,
    /// so that several devices drop what one would where axis 0 is the batch. In evaluation x.
    Dropout {
        /// From 0 to less than 1.
        rate: f32,
    },
    /// x `[…, n]` → the same shape: exp(x) / Σ exp(x) of each row.
    Softmax {
        /// x is `[…, n, n]`, and of row i only the first i + 1 elements count: the others become 0.
        #[serde(default)]
        causal: bool,
    },
    /// x `[…, n]` → the same shape: the logarithm of the softmax of each row.
    LogSoftmax,

    /// logits `[…, classes]`, labels i32 `[…]` or f32 `[…, classes]` → `[]`: the mean over all rows of −log
    /// softmax(logits)`[label]`, or −Σ labels · log softmax(logits).
    SoftmaxCrossEntropy,
    /// logits `[…]`, labels f32 `[…]` from 0 to 1 → `[]`: the mean over all elements of −log of the probability that
    /// sigmoid(logit) gives to the label.
    SigmoidCrossEntropy,
    /// a, b of one shape → `[]`: the mean of (a − b)².
    MeanSquaredError,

    /// logits `[…, classes]`, labels i32 `[…]` → `[]`: the share of rows whose largest logit, the first of equal ones, is
    /// the label's.
    Accuracy,
    /// logits `[…, classes]`, labels i32 `[…]` → `[]`: the share of rows where fewer than `k` logits come before the
    /// label's: larger ones, and equal ones of an earlier class. With a `k` of 1 it is the accuracy.
    TopK {
        /// At least 1.
        k: usize,
    },
    /// logits `[…]`, labels i32 `[…]` of 0 or 1 → `[2, bins]`: how many of label 0 and of label 1 have their
    /// sigmoid(logit) in each of the bins from 0 to 1. As a metric it is the area under the ROC curve of all examples
    /// together, ties within a bin counted one half.
    #[serde(rename = "auc")]
    AucCounts {
        /// From 2 to 65 536.
        bins: usize,
    },
}

/// How many inputs an operation takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    /// So many.
    Exactly(usize),
    /// So many or more.
    AtLeast(usize),
}

impl Op {
    /// The word that stands for it in messages.
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

    /// How many inputs it takes.
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
    /// Whether so many inputs are right.
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
