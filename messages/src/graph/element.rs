//! The functions that element-wise operations and reductions apply to numbers.

use serde::{Deserialize, Serialize};

/// A function of one number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum UnaryOp {
    /// −x.
    Neg,
    /// |x|.
    Abs,
    /// x².
    Square,
    /// √x.
    Sqrt,
    /// eˣ.
    Exp,
    /// The natural logarithm of x.
    Log,
    /// 1 / (1 + e⁻ˣ).
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
    /// max(x, 0).
    Relu,
    /// x if x ≥ 0, else x multiplied by the slope.
    LeakyRelu {
        /// The slope; finite.
        slope: f32,
    },
    /// x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))): Hendrycks & Gimpel 2016.
    Gelu,
}

/// A function of two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BinaryOp {
    /// a + b.
    Add,
    /// a − b.
    Sub,
    /// a · b.
    Mul,
    /// a / b.
    Div,
}

/// A function that reduces many numbers to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReductionOp {
    /// The sum.
    Sum,
    /// The sum divided by the count.
    Mean,
    /// The maximum.
    Max,
}

impl UnaryOp {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Neg => "neg",
            Self::Abs => "abs",
            Self::Square => "square",
            Self::Sqrt => "sqrt",
            Self::Exp => "exp",
            Self::Log => "log",
            Self::Sigmoid => "sigmoid",
            Self::Tanh => "tanh",
            Self::Relu => "relu",
            Self::LeakyRelu { .. } => "leaky_relu",
            Self::Gelu => "gelu",
        }
    }
}

impl BinaryOp {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Sub => "sub",
            Self::Mul => "mul",
            Self::Div => "div",
        }
    }
}

impl ReductionOp {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Sum => "reduce_sum",
            Self::Mean => "reduce_mean",
            Self::Max => "reduce_max",
        }
    }
}
