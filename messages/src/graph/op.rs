//! The operations: what each takes and gives. Batch first; every tensor is row-major.
//!
//! Gradients are operations like any other ("backward is more graph"), so that one check, one plan and one
//! executor serve both directions.

use serde::{Deserialize, Serialize};

use super::geometry::{Stride, Window};

use crate::id::VariableId;
use crate::tensor::{Shape, TensorSpec};

/// What a node computes from its inputs. B is the batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Op {
    /// () → `[B, …]`: fed with each batch, by the node's name.
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
    /// `[m, k]`, `[k, n]` → `[m, n]`: the matrix product; a transposed operand is given the other way round.
    MatMul {
        /// The first operand is `[k, m]`.
        #[serde(default)]
        transpose_a: bool,
        /// The second operand is `[n, k]`.
        #[serde(default)]
        transpose_b: bool,
    },
    /// `[…, n]`, `[n]` → `[…, n]`: the second added to every row of the first.
    BiasAdd,
    /// x → the same shape: max(x, 0).
    Relu,
    /// a, b of one shape → that shape: a + b.
    Add,
    /// `[B, …]` → `[B, shape…]`: the same elements, each example in another shape.
    Reshape {
        /// One example's.
        shape: Shape,
    },
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
    /// logits `[B, classes]`, labels i32 `[B]` → `[]`: mean over the batch of −log softmax(logits)`[label]`.
    SoftmaxCrossEntropy,
    /// logits `[B, classes]`, labels i32 `[B]` → `[]`: the share of rows whose largest logit is the label's.
    Accuracy,
    /// y = relu(x), dy of one shape → that shape: dy where y > 0, else 0.
    ReluGrad,
    /// `[…, n]` → `[n]`: the sum of all rows; the gradient of a bias.
    SumRows,
    /// kernel `[kh, kw, cin, cout]`, dy `[B, ho, wo, cout]` → `[B, example…]`: the gradient by the images.
    #[serde(rename = "conv2d_input_grad")]
    Conv2dInputGrad {
        /// The convolution's.
        geometry: Stride,
        /// One image: `[h, w, cin]`.
        example: Shape,
    },
    /// images `[B, h, w, cin]`, dy `[B, ho, wo, cout]` → `[kh, kw, cin, cout]`: the gradient by the kernel.
    #[serde(rename = "conv2d_kernel_grad")]
    Conv2dKernelGrad {
        /// The convolution's.
        geometry: Stride,
        /// `[kh, kw]`.
        window: [usize; 2],
    },
    /// the max_pool2d node, dy of its shape → `[B, example…]`: dy where the maximum was.
    #[serde(rename = "max_pool2d_grad")]
    MaxPool2dGrad {
        /// The pooling's.
        geometry: Window,
        /// One image: `[h, w, c]`.
        example: Shape,
    },
    /// dy `[B, ho, wo, c]` → `[B, example…]`: dy spread over each window.
    #[serde(rename = "average_pool2d_grad")]
    AveragePool2dGrad {
        /// The pooling's.
        geometry: Window,
        /// One image: `[h, w, c]`.
        example: Shape,
    },
    /// dy `[B, c]` → `[B, example…]`: dy spread over each image.
    GlobalAveragePoolGrad {
        /// One image: `[h, w, c]`.
        example: Shape,
    },
    /// logits `[B, classes]`, labels i32 `[B]`, dloss `[]` → `[B, classes]`: (softmax − one_hot) · dloss / B.
    SoftmaxCrossEntropyGrad,
}

impl Op {
    /// The word that stands for it in a job file and in messages.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Input { .. } => "input",
            Self::Variable { .. } => "variable",
            Self::Constant { .. } => "constant",
            Self::MatMul { .. } => "mat_mul",
            Self::BiasAdd => "bias_add",
            Self::Relu => "relu",
            Self::Add => "add",
            Self::Reshape { .. } => "reshape",
            Self::SoftmaxCrossEntropy => "softmax_cross_entropy",
            Self::Accuracy => "accuracy",
            Self::Conv2d(_) => "conv2d",
            Self::MaxPool2d(_) => "max_pool2d",
            Self::AveragePool2d(_) => "average_pool2d",
            Self::GlobalAveragePool => "global_average_pool",
            Self::Conv2dInputGrad { .. } => "conv2d_input_grad",
            Self::Conv2dKernelGrad { .. } => "conv2d_kernel_grad",
            Self::MaxPool2dGrad { .. } => "max_pool2d_grad",
            Self::AveragePool2dGrad { .. } => "average_pool2d_grad",
            Self::GlobalAveragePoolGrad { .. } => "global_average_pool_grad",
            Self::ReluGrad => "relu_grad",
            Self::SumRows => "sum_rows",
            Self::SoftmaxCrossEntropyGrad => "softmax_cross_entropy_grad",
        }
    }

    /// How many inputs it takes.
    pub const fn arity(&self) -> usize {
        match self {
            Self::Input { .. } | Self::Variable { .. } | Self::Constant { .. } => 0,
            Self::Relu
            | Self::Reshape { .. }
            | Self::SumRows
            | Self::MaxPool2d(_)
            | Self::AveragePool2d(_)
            | Self::GlobalAveragePool
            | Self::AveragePool2dGrad { .. }
            | Self::GlobalAveragePoolGrad { .. } => 1,
            Self::MatMul { .. }
            | Self::BiasAdd
            | Self::Add
            | Self::SoftmaxCrossEntropy
            | Self::Accuracy
            | Self::ReluGrad
            | Self::Conv2d(_)
            | Self::Conv2dInputGrad { .. }
            | Self::Conv2dKernelGrad { .. }
            | Self::MaxPool2dGrad { .. } => 2,
            Self::SoftmaxCrossEntropyGrad => 3,
        }
    }
}
