//! The functions of one number and their gradients, each as a named function. This module must not depend on
//! slices.

use crate::cpu::exp::{exp, ln, sigmoid, tanh};
use crate::cpu::relu::rectify;

/// A function of one number, which maps a NaN to a NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unary {
    /// `−x`.
    Neg,
    /// `x²`.
    Square,
    /// `√x`.
    Sqrt,
    /// `1 / √x`.
    Rsqrt,
    /// `|x|`.
    Abs,
    /// The natural logarithm, with an error of at most 2 units in the last place.
    Log,
    /// `eˣ`, with an error of at most 2 units in the last place.
    Exp,
    /// `1 / (1 + e⁻ˣ)`, with an error of at most 4 units in the last place.
    Sigmoid,
    /// The hyperbolic tangent, with an error of at most 4 units in the last place.
    Tanh,
    /// `max(x, 0)`; a NaN stays a NaN, so that a diverged network does not look like a dead network.
    Relu,
    /// `x`, multiplied by this slope if `x` is negative.
    LeakyRelu(f32),
    /// The Gelu of Hendrycks & Gimpel 2016, in the form with the hyperbolic tangent: `x / 2 · (1 +
    /// tanh(√(2/π) · (x + 0.044715 x³)))`.
    Gelu,
}

/// Which value of the forward pass the gradient of a function needs: the input, the output or neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// No value is needed.
    Nothing,
    /// The input `x` is needed.
    Input,
    /// The output `y` is needed.
    Output,
}

impl Unary {
    /// Returns which value of the forward pass [`unary_grad`](super::unary_grad) reads.
    pub fn saved(self) -> Saved {
        match self {
            Self::Neg => Saved::Nothing,
            Self::Square | Self::Abs | Self::Log | Self::LeakyRelu(_) | Self::Gelu => Saved::Input,
            Self::Sqrt | Self::Rsqrt | Self::Exp | Self::Sigmoid | Self::Tanh | Self::Relu => Saved::Output,
        }
    }

    /// Calls `work.run` with the function.
    #[inline(always)]
    pub(in crate::cpu) fn visit(self, work: impl UnaryWork) {
        match self {
            Self::Neg => work.run(neg),
            Self::Square => work.run(square),
            Self::Sqrt => work.run(f32::sqrt),
            Self::Rsqrt => work.run(rsqrt),
            Self::Abs => work.run(f32::abs),
            Self::Log => work.run(ln),
            Self::Exp => work.run(exp),
            Self::Sigmoid => work.run(sigmoid),
            Self::Tanh => work.run(tanh),
            Self::Relu => work.run(rectify),
            Self::LeakyRelu(slope) => work.run(leaky(slope)),
            Self::Gelu => work.run(gelu),
        }
    }

    /// Calls `work.run` with the gradient, as a function of the saved value and `dy`.
    #[inline(always)]
    pub(in crate::cpu) fn visit_grad(self, work: impl UnaryGradWork) {
        match self {
            Self::Neg => work.run(neg_grad),
            Self::Square => work.run(square_grad),
            Self::Sqrt => work.run(sqrt_grad),
            Self::Rsqrt => work.run(rsqrt_grad),
            Self::Abs => work.run(abs_grad),
            Self::Log => work.run(log_grad),
            Self::Exp => work.run(exp_grad),
            Self::Sigmoid => work.run(sigmoid_grad),
            Self::Tanh => work.run(tanh_grad),
            Self::Relu => work.run(relu_grad),
            Self::LeakyRelu(slope) => work.run(leaky_grad(slope)),
            Self::Gelu => work.run(gelu_grad),
        }
    }
}

/// A loop that applies a [`Unary`]. The loop takes the function as a type parameter, and so is compiled
/// separately for each function.
///
/// The functions are named functions instead of closures. A closure would have a different type in each
/// caller, and so every loop that takes it would be compiled again for each caller.
pub(in crate::cpu) trait UnaryWork {
    /// Runs the loop. Mark every implementation `#[inline(always)]`.
    fn run(self, f: impl Fn(f32) -> f32 + Copy + Sync);
}

/// A loop that applies the gradient of a [`Unary`]. The gradient is a function of the saved value and `dy`.
pub(in crate::cpu) trait UnaryGradWork {
    /// Runs the loop. Mark every implementation `#[inline(always)]`.
    fn run(self, f: impl Fn(f32, f32) -> f32 + Copy + Sync);
}

#[inline(always)]
fn neg(x: f32) -> f32 {
    -x
}

#[inline(always)]
fn neg_grad(_: f32, dy: f32) -> f32 {
    -dy
}

#[inline(always)]
fn square(x: f32) -> f32 {
    x * x
}

#[inline(always)]
fn square_grad(x: f32, dy: f32) -> f32 {
    2.0 * x * dy
}

#[inline(always)]
fn sqrt_grad(y: f32, dy: f32) -> f32 {
    dy / (2.0 * y)
}

#[inline(always)]
fn rsqrt(x: f32) -> f32 {
    1.0 / x.sqrt()
}

#[inline(always)]
fn rsqrt_grad(y: f32, dy: f32) -> f32 {
    -0.5 * y * y * y * dy
}

#[inline(always)]
fn log_grad(x: f32, dy: f32) -> f32 {
    dy / x
}

#[inline(always)]
fn exp_grad(y: f32, dy: f32) -> f32 {
    y * dy
}

#[inline(always)]
fn sigmoid_grad(y: f32, dy: f32) -> f32 {
    y * (1.0 - y) * dy
}

#[inline(always)]
fn tanh_grad(y: f32, dy: f32) -> f32 {
    (1.0 - y * y) * dy
}

#[inline(always)]
fn relu_grad(y: f32, dy: f32) -> f32 {
    if y > 0.0 { dy } else { 0.0 }
}

#[inline(always)]
fn abs_grad(x: f32, dy: f32) -> f32 {
    let signed = if x < 0.0 { -dy } else { dy };
    if x == 0.0 { 0.0 } else { signed }
}

#[inline(always)]
fn leaky(slope: f32) -> impl Fn(f32) -> f32 + Copy + Sync {
    move |x| if x < 0.0 { slope * x } else { x }
}

#[inline(always)]
fn leaky_grad(slope: f32) -> impl Fn(f32, f32) -> f32 + Copy + Sync {
    move |x, dy| if x > 0.0 { dy } else { slope * dy }
}

/// √(2/π), and the factor of the cube in Gelu.
const GELU: [f32; 2] = [0.797_884_6, 0.044_715];

/// Computes Gelu with the sigmoid. `1 + tanh u` is twice the sigmoid of `2u`, and for negative `u` only the
/// sigmoid keeps all digits.
#[inline(always)]
fn gelu(x: f32) -> f32 {
    x * gelu_gate(x)
}

#[inline(always)]
fn gelu_gate(x: f32) -> f32 {
    sigmoid(2.0 * GELU[0] * (x + GELU[1] * x * x * x))
}

#[inline(always)]
fn gelu_grad(x: f32, dy: f32) -> f32 {
    let gate = gelu_gate(x);
    let slope = gate + x * gate * (1.0 - gate) * (2.0 * GELU[0] * (1.0 + 3.0 * GELU[1] * x * x));
    slope * dy
}
