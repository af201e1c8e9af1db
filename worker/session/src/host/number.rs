//! Numbers of all types behind one trait, so that each operation is written once.

use pushpull_messages::graph::{BinaryOp, UnaryOp};

/// The reason why an operation on the host cannot be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HostFault {
    /// An integer is divided by 0.
    #[error("an integer was divided by 0")]
    DivisionByZero,
}

/// A type of numbers. Integers wrap around at the bounds of the type.
pub(super) trait Number: Copy + PartialOrd + Default {
    fn unary(op: UnaryOp, x: Self) -> Self;

    /// Returns `None` for a division of an integer by 0.
    fn binary(op: BinaryOp, a: Self, b: Self) -> Option<Self>;

    fn add(a: Self, b: Self) -> Self;

    /// Divides a sum by the number of its terms.
    fn divided(sum: Self, count: usize) -> Self;
}

macro_rules! integers {
    ($($int:ty)*) => {
        $(impl Number for $int {
            fn unary(op: UnaryOp, x: Self) -> Self {
                match op {
                    UnaryOp::Neg => x.wrapping_neg(),
                    UnaryOp::Square => x.wrapping_mul(x),
                    #[allow(unused_comparisons, reason = "the macro is for unsigned integers, too")]
                    UnaryOp::Abs => if x < 0 { x.wrapping_neg() } else { x },
                    UnaryOp::Relu => x.max(0),
                    other => unreachable!("{other:?} of integers, by inference"),
                }
            }

            fn binary(op: BinaryOp, a: Self, b: Self) -> Option<Self> {
                Some(match op {
                    BinaryOp::Add => a.wrapping_add(b),
                    BinaryOp::Sub => a.wrapping_sub(b),
                    BinaryOp::Mul => a.wrapping_mul(b),
                    BinaryOp::Div if b == 0 => return None,
                    BinaryOp::Div => a.wrapping_div(b),
                })
            }

            fn add(a: Self, b: Self) -> Self {
                a.wrapping_add(b)
            }

            fn divided(sum: Self, count: usize) -> Self {
                // The count fits, or the division would give 0 anyway.
                <$int>::try_from(count).map_or(0, |count| sum / count.max(1))
            }
        })*
    };
}

integers! { i32 i64 u8 }

macro_rules! floats {
    ($($float:ty)*) => {
        $(impl Number for $float {
            fn unary(op: UnaryOp, x: Self) -> Self {
                match op {
                    UnaryOp::Neg => -x,
                    UnaryOp::Abs => x.abs(),
                    UnaryOp::Square => x * x,
                    UnaryOp::Sqrt => x.sqrt(),
                    UnaryOp::Exp => x.exp(),
                    UnaryOp::Log => x.ln(),
                    UnaryOp::Sigmoid => 1.0 / (1.0 + (-x).exp()),
                    UnaryOp::Tanh => x.tanh(),
                    UnaryOp::Relu => if x > 0.0 || x.is_nan() { x } else { 0.0 },
                    UnaryOp::LeakyRelu { slope } => if x > 0.0 { x } else { x * slope as $float },
                    UnaryOp::Gelu => {
                        let inner = (2.0 / std::f64::consts::PI).sqrt() as $float * (x + 0.044_715 * x * x * x);
                        0.5 * x * (1.0 + inner.tanh())
                    }
                }
            }

            fn binary(op: BinaryOp, a: Self, b: Self) -> Option<Self> {
                Some(match op {
                    BinaryOp::Add => a + b,
                    BinaryOp::Sub => a - b,
                    BinaryOp::Mul => a * b,
                    BinaryOp::Div => a / b,
                })
            }

            fn add(a: Self, b: Self) -> Self {
                a + b
            }

            fn divided(sum: Self, count: usize) -> Self {
                sum / count as $float
            }
        })*
    };
}

floats! { f32 f64 }

/// Calls a generic function with the elements of a tensor of numbers.
macro_rules! for_numbers {
    ($tensor:expr, $elements:ident => $call:expr) => {
        match $tensor.elements() {
            Elements::F32($elements) => $call,
            Elements::I32($elements) => $call,
            Elements::I64($elements) => $call,
            Elements::F64($elements) => $call,
            Elements::U8($elements) => $call,
            other => unreachable!("numbers, not {}, by inference", other.dtype()),
        }
    };
}

pub(super) use for_numbers;
