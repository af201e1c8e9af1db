//! The operations: what each takes and gives. Batch first; every tensor is row-major.
//!
//! Gradients are operations like any other ("backward is more graph"), so that one check, one plan and one
//! executor serve both directions.

use serde::{Deserialize, Serialize};

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
    /// logits `[B, classes]`, labels i32 `[B]` → `[]`: mean over the batch of −log softmax(logits)`[label]`.
    SoftmaxCrossEntropy,
    /// logits `[B, classes]`, labels i32 `[B]` → `[]`: the share of rows whose largest logit is the label's.
    Accuracy,
    /// y = relu(x), dy of one shape → that shape: dy where y > 0, else 0.
    ReluGrad,
    /// `[…, n]` → `[n]`: the sum of all rows; the gradient of a bias.
    SumRows,
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
            Self::ReluGrad => "relu_grad",
            Self::SumRows => "sum_rows",
            Self::SoftmaxCrossEntropyGrad => "softmax_cross_entropy_grad",
        }
    }

    /// How many inputs it takes.
    pub const fn arity(&self) -> usize {
        match self {
            Self::Input { .. } | Self::Variable { .. } | Self::Constant { .. } => 0,
            Self::Relu | Self::Reshape { .. } | Self::SumRows => 1,
            Self::MatMul { .. }
            | Self::BiasAdd
            | Self::Add
            | Self::SoftmaxCrossEntropy
            | Self::Accuracy
            | Self::ReluGrad => 2,
            Self::SoftmaxCrossEntropyGrad => 3,
        }
    }
}
