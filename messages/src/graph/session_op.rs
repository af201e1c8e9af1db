//! The operations that only sessions run: they change variables, work on tensors of all types, or stand for a
//! gradient. A gradient does not pass through any of them.

use serde::{Deserialize, Serialize};

use super::arity::Arity;
use super::element::{BinaryOp, ReductionOp, UnaryOp};
use crate::id::VariableId;
use crate::optimizer::OptimizerSpec;
use crate::tensor::{DType, Tensor, TensorSpec};

/// An operation of sessions. The documentation of each operation begins with inputs → output. There, `…`
/// stands for zero or more axes. Shapes are broadcast as for [`Op::Binary`](super::Op::Binary).
///
/// Arithmetic on integers wraps around at the bounds of the type. Integer division rounds towards 0, and a
/// division by 0 fails the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum SessionOp {
    /// () → the value.
    Constant {
        /// The value; not empty.
        value: Tensor,
    },
    /// () → the tensor that the client feeds under the name of the node. It must have exactly this spec.
    Placeholder {
        /// The shape and type of the tensor; not empty.
        tensor: TensorSpec,
    },
    /// Numbers or truth values → the same shape: converts each element. A float is rounded towards 0 and
    /// limited to the range of an integer type, and NaN becomes 0. An integer keeps the bits that fit the
    /// other type. Every number but 0 is true.
    Cast {
        /// The type of the output; not text.
        to: DType,
    },
    /// i32, i64, f64 or u8 → the same spec: applies a function to each element. Integers have `abs`, `square`
    /// and `relu`; signed integers also have `neg`.
    Unary(UnaryOp),
    /// a, b of the same type, which is i32, i64, f64 or u8 → a ∘ b, element by element.
    Binary(BinaryOp),
    /// i32, i64, f64 or u8 → x without `axes`: computes the sum, mean or maximum along these axes. Only f64
    /// has a mean.
    Reduce {
        /// Whether to compute the sum, the mean or the maximum.
        reduction: ReductionOp,
        /// The axes, ascending.
        axes: Vec<usize>,
        /// Whether the axes are kept with extent 1.
        #[serde(default)]
        keep: bool,
    },
    /// a, b of the same type → bool, element by element. Truth values and text can only be equal or not.
    Compare(Comparison),
    /// bool, or two bools → bool, element by element.
    Logical(Logic),
    /// condition bool, a and b of the same type → this type: the elements of a where the condition is true,
    /// and the elements of b elsewhere. All three shapes are broadcast.
    Select,
    /// Numbers → i64 without the axis: the index of the largest element along the axis; the first of several.
    ArgMax {
        /// The axis.
        axis: usize,
    },
    /// Numbers `[…, n]` → `[…, k]`: the `k` largest elements of each row, in descending order.
    TopValues {
        /// The number of elements, from 1 to n.
        k: usize,
    },
    /// Numbers `[…, n]` → i32 `[…, k]`: the indices of the `k` largest elements of each row, in descending
    /// order of the elements. Of equal elements, the one with the smaller index is first.
    TopIndices {
        /// The number of indices, from 1 to n.
        k: usize,
    },
    /// One or more tensors of numbers with the same spec → their sum.
    AddN,
    /// x → x. On another device than x, this is a copy.
    Identity,
    /// A value of the variable's spec → the variable's new value.
    Assign {
        /// The variable that is changed.
        variable: VariableId,
        /// How the variable is changed.
        update: VariableUpdate,
    },
    /// () → bool `[]`: gives a variable its initial value, and returns true.
    Initialize {
        /// The variable.
        variable: VariableId,
    },
    /// Any inputs → bool `[]`: returns true when all inputs are computed.
    Group,
    /// loss f32 `[]` → the variable's shape: the gradient of the loss with respect to an f32 variable.
    Gradient {
        /// The variable.
        variable: VariableId,
    },
    /// gradient f32 of the variable's shape → bool `[]`: applies one update to an f32 variable, and returns
    /// true.
    Apply {
        /// The variable that is updated.
        variable: VariableId,
        /// The optimizer, whose slots belong to the variable.
        optimizer: OptimizerSpec,
    },
}

/// A comparison of two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Comparison {
    /// a = b.
    Equal,
    /// a ≠ b.
    NotEqual,
    /// a < b.
    Less,
    /// a ≤ b.
    LessEqual,
    /// a > b.
    Greater,
    /// a ≥ b.
    GreaterEqual,
}

/// A function of truth values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Logic {
    /// True if both are true.
    And,
    /// True if at least one is true.
    Or,
    /// True if the only input is false.
    Not,
}

/// How an assignment changes a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VariableUpdate {
    /// The value replaces the variable's value.
    Set,
    /// The value is added to the variable; numbers only.
    Add,
    /// The value is subtracted from the variable; numbers only.
    Sub,
}

impl SessionOp {
    /// Returns the name that errors and builders use for the operation.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Constant { .. } => "constant",
            Self::Placeholder { .. } => "placeholder",
            Self::Cast { .. } => "cast",
            Self::Unary(op) => op.name(),
            Self::Binary(op) => op.name(),
            Self::Reduce { reduction, .. } => reduction.name(),
            Self::Compare(comparison) => comparison.name(),
            Self::Logical(logic) => logic.name(),
            Self::Select => "select",
            Self::ArgMax { .. } => "arg_max",
            Self::TopValues { .. } => "top_values",
            Self::TopIndices { .. } => "top_indices",
            Self::AddN => "add_n",
            Self::Identity => "identity",
            Self::Assign { update: VariableUpdate::Set, .. } => "assign",
            Self::Assign { update: VariableUpdate::Add, .. } => "assign_add",
            Self::Assign { update: VariableUpdate::Sub, .. } => "assign_sub",
            Self::Initialize { .. } => "initialize",
            Self::Group => "group",
            Self::Gradient { .. } => "gradient",
            Self::Apply { .. } => "apply",
        }
    }

    /// Returns the number of inputs that the operation takes.
    pub const fn arity(&self) -> Arity {
        match self {
            Self::Constant { .. } | Self::Placeholder { .. } | Self::Initialize { .. } => Arity::Exactly(0),
            Self::Cast { .. }
            | Self::Unary(_)
            | Self::Reduce { .. }
            | Self::Logical(Logic::Not)
            | Self::ArgMax { .. }
            | Self::TopValues { .. }
            | Self::TopIndices { .. }
            | Self::Identity
            | Self::Assign { .. }
            | Self::Gradient { .. }
            | Self::Apply { .. } => Arity::Exactly(1),
            Self::Binary(_) | Self::Compare(_) | Self::Logical(Logic::And | Logic::Or) => Arity::Exactly(2),
            Self::Select => Arity::Exactly(3),
            Self::AddN => Arity::AtLeast(1),
            Self::Group => Arity::AtLeast(0),
        }
    }

    /// Returns the variable that the operation changes or differentiates by, if there is one.
    pub const fn variable(&self) -> Option<VariableId> {
        match self {
            Self::Assign { variable, .. }
            | Self::Initialize { variable }
            | Self::Gradient { variable }
            | Self::Apply { variable, .. } => Some(*variable),
            _ => None,
        }
    }

    /// Returns true if the operation changes variables.
    pub const fn changes_variables(&self) -> bool {
        matches!(self, Self::Assign { .. } | Self::Initialize { .. } | Self::Apply { .. })
    }
}

impl Comparison {
    const fn name(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::NotEqual => "not_equal",
            Self::Less => "less",
            Self::LessEqual => "less_equal",
            Self::Greater => "greater",
            Self::GreaterEqual => "greater_equal",
        }
    }
}

impl Logic {
    const fn name(self) -> &'static str {
        match self {
            Self::And => "logical_and",
            Self::Or => "logical_or",
            Self::Not => "logical_not",
        }
    }
}
