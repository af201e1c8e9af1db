//! The operations of a graph, with their inputs and outputs. The batch is the first axis, and every tensor is
//! row-major.
//!
//! These are the operations of the forward pass. Workers derive the gradients themselves, so the graph does
//! not contain the backward pass.

use serde::{Deserialize, Serialize};

use super::arity::Arity;
use super::element::{BinaryOp, ReductionOp, UnaryOp};
use super::geometry::{Stride, Window};
use super::session_op::SessionOp;
use crate::id::VariableId;
use crate::tensor::{Shape, TensorSpec};

/// An operation: what a node computes from its inputs. The documentation of each operation begins with
/// inputs → output. There, `B` is the batch size, and `…` stands for zero or more axes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Op {
    /// () → `[B, …]`: the data set's column with the same name as the node.
    Input {
        /// The shape and type of one example, without the batch axis.
        example: TensorSpec,
    },
    /// () → the variable's shape: the value of the variable, as the worker pulled it.
    Variable {
        /// The variable that is read.
        variable: VariableId,
    },
    /// () → `[]`: a constant number.
    Constant {
        /// The value of the constant.
        value: f32,
    },
    /// i32 → f32 of the same shape.
    ToFloat,

    /// x → the same shape: applies a function to each element.
    Unary(UnaryOp),
    /// a, b → a ∘ b, element by element. Shapes are broadcast as in NumPy: they are aligned at the last axis,
    /// and missing axes and axes of extent 1 are repeated.
    Binary(BinaryOp),
    /// x → x without `axes`: computes the sum, mean or maximum along these axes.
    Reduce {
        /// Whether to compute the sum, the mean or the maximum.
        reduction: ReductionOp,
        /// The axes, ascending; axis 0 is the batch.
        axes: Vec<usize>,
        /// Whether the axes are kept with extent 1.
        #[serde(default)]
        keep: bool,
    },

    /// `[B, …]` → `[B, shape…]`: gives each example another shape, with the same elements.
    Reshape {
        /// The shape of one example.
        shape: Shape,
    },
    /// x → x with its axes permuted: axis i of the output is axis `axes[i]` of x.
    Transpose {
        /// The axes of x in the order of the output, each once.
        axes: Vec<usize>,
    },
    /// Two or more tensors whose shapes differ only along one axis → their concatenation along this axis.
    Concat {
        /// The axis to concatenate along; 0 is the batch.
        axis: usize,
    },
    /// x → a part of x: along one axis, the `length` elements that begin at `start`.
    Slice {
        /// The axis to slice along; 0 is the batch.
        axis: usize,
        /// The index of the first element taken.
        start: usize,
        /// The number of elements taken.
        length: usize,
    },

    /// `[…, m, k]`, `[…, k, n]` → `[…, m, n]`: one matrix product for each index of the leading axes, which
    /// must be the same in both operands. Or `[…, k]`, `[k, n]` → `[…, n]`: multiplies all rows by one
    /// matrix. An operand can be transposed first, which exchanges its last two axes; in the second form,
    /// this is possible only for the matrix.
    MatMul {
        /// Whether the first operand has the shape `[…, k, m]` and must be transposed first.
        #[serde(default)]
        transpose_a: bool,
        /// Whether the second operand has the shape `[…, n, k]` and must be transposed first.
        #[serde(default)]
        transpose_b: bool,
    },
    /// `[…, n]`, `[n]` → `[…, n]`: adds the second input to every row of the first.
    BiasAdd,
    /// table `[rows, n]`, ids i32 `[…]` → `[…, n]`: looks up the row of each id. The step fails if an id is
    /// outside the table.
    Embedding,

    /// images `[B, h, w, cin]`, kernel `[kh, kw, cin, cout]` → `[B, ho, wo, cout]`: a convolution, without
    /// flipping the kernel, as is usual in neural networks.
    #[serde(rename = "conv2d")]
    Conv2d(Stride),
    /// images `[B, h, w, c]` → `[B, ho, wo, c]`: the maximum of each window, channel by channel.
    #[serde(rename = "max_pool2d")]
    MaxPool2d(Window),
    /// images `[B, h, w, c]` → `[B, ho, wo, c]`: the mean of each window, without the pixels of the padding.
    #[serde(rename = "average_pool2d")]
    AveragePool2d(Window),
    /// images `[B, h, w, c]` → `[B, c]`: the mean of each channel.
    GlobalAveragePool,

    /// x `[…, c]`, gamma `[c]`, beta `[c]`, moving mean `[c]`, moving variance `[c]` → `[…, c]`: normalises
    /// each channel to mean 0 and variance 1, then multiplies by gamma and adds beta (Ioffe & Szegedy 2015).
    /// Training normalises by the mean and variance of the batch. Training also moves the moving mean and
    /// variance, two untrained variables, towards the mean and variance of the batch. Evaluation normalises
    /// by the moving mean and variance.
    ///
    /// With several devices, each device normalises its own part of the batch. The moving mean and variance
    /// then move towards the average over the parts. With several asynchronous workers, the updates that
    /// workers compute from the same moving values add up, so momentum should be well above 1 − 1 / workers.
    /// A negative variance is treated as 0.
    BatchNorm {
        /// The term added to the variance; above 0.
        epsilon: f32,
        /// The fraction of the moving mean and variance that is kept in each step, from 0 to 1.
        momentum: f32,
    },
    /// x `[…, n]`, gamma `[n]`, beta `[n]` → `[…, n]`: normalises each row to mean 0 and variance 1, then
    /// multiplies by gamma and adds beta (Ba et al. 2016).
    LayerNorm {
        /// The term added to the variance; above 0.
        epsilon: f32,
    },
    /// x → the same shape. In training, sets each element to 0 with probability `rate` and divides the others
    /// by 1 − rate (Srivastava et al. 2014). In evaluation, returns x. The choice of elements depends on the
    /// job's seed, the worker, the worker's step, the node and the element's position. If axis 0 is the
    /// batch, several devices therefore drop the same elements as a single device would.
    Dropout {
        /// The probability that an element is set to 0; from 0 to less than 1.
        rate: f32,
    },
    /// x `[…, n]` → the same shape: computes exp(x) / Σ exp(x) in each row.
    Softmax {
        /// Whether row i uses only its first i + 1 elements; the others become 0. If true, x must be `[…, n,
        /// n]`.
        #[serde(default)]
        causal: bool,
    },
    /// x `[…, n]` → the same shape: the logarithm of the softmax of each row.
    LogSoftmax,

    /// logits `[…, classes]`, labels i32 `[…]` or f32 `[…, classes]` → `[]`: the mean over all rows of −log
    /// softmax(logits)`[label]` for i32 labels, and of −Σ labels · log softmax(logits) for f32 labels.
    SoftmaxCrossEntropy,
    /// logits `[…]`, labels f32 `[…]` from 0 to 1 → `[]`: the mean over all elements of −label · log p − (1
    /// − label) · log(1 − p), where p is sigmoid(logit).
    SigmoidCrossEntropy,
    /// a and b of equal shape → `[]`: the mean of (a − b)².
    MeanSquaredError,

    /// logits `[…, classes]`, labels i32 `[…]` → `[]`: the fraction of rows in which the label's logit is
    /// the largest. If several logits are equally large, the first of them counts as the largest.
    Accuracy,
    /// logits `[…, classes]`, labels i32 `[…]` → `[]`: the fraction of rows in which the label's logit is
    /// among the `k` largest. Among equal logits, the logit of the earlier class ranks first. If `k` is 1,
    /// the result is the accuracy.
    TopK {
        /// The number of largest logits that count; at least 1.
        k: usize,
    },
    /// logits `[…]`, labels i32 `[…]` of 0 or 1 → `[2, bins]`: for each label, counts the examples whose
    /// sigmoid(logit) lies in each bin. The bins divide the range from 0 to 1 evenly. If the node is a
    /// metric, its value is the area under the ROC curve over all examples. A pair of examples with
    /// different labels in the same bin is a tie and counts one half.
    #[serde(rename = "auc")]
    AucCounts {
        /// The number of bins, from 2 to 65 536.
        bins: usize,
    },

    /// An operation that only sessions run. A training job refuses it.
    Session(SessionOp),
}

impl Op {
    /// Returns the name that errors and job files use for the operation.
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
            Self::Session(op) => op.name(),
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
            Self::Session(op) => return op.arity(),
        })
    }
}
