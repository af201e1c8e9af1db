//! Functions of one number, element by element, and their gradients. They must not know layers.

use super::dispatch::zip_map;
use super::exp::{exp, ln, sigmoid, tanh};
use super::relu::rectify;
use super::shape::expect_len;
use super::threads::Threads;

/// A function of one number. A NaN stays a NaN.
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
    /// The natural logarithm, to 2 units in the last place.
    Log,
    /// `eˣ`, to 2 units in the last place.
    Exp,
    /// `1 / (1 + e⁻ˣ)`, to 4 units in the last place.
    Sigmoid,
    /// The hyperbolic tangent, to 4 units in the last place.
    Tanh,
    /// `max(x, 0)`; a NaN stays a NaN, so that a diverged network does not look like a dead one.
    Relu,
    /// `x`, times this slope where it is negative.
    LeakyRelu(f32),
    /// Hendrycks & Gimpel 2016 in the form with the hyperbolic tangent: `x / 2 · (1 + tanh(√(2/π) · (x +
    /// 0.044715 x³)))`.
    Gelu,
}

/// What a gradient needs from the forward computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// Nothing.
    Nothing,
    /// The input `x`.
    Input,
    /// The output `y`.
    Output,
}

impl Unary {
    /// What [`unary_grad`] reads.
    pub fn saved(self) -> Saved {
        match self {
            Self::Neg => Saved::Nothing,
            Self::Square | Self::Abs | Self::Log | Self::LeakyRelu(_) | Self::Gelu => Saved::Input,
            Self::Sqrt | Self::Rsqrt | Self::Exp | Self::Sigmoid | Self::Tanh | Self::Relu => Saved::Output,
        }
    }

    /// Hands `work` the function.
    #[inline(always)]
    pub(super) fn visit(self, work: impl UnaryWork) {
        match self {
            Self::Neg => work.run(|x| -x),
            Self::Square => work.run(|x| x * x),
            Self::Sqrt => work.run(f32::sqrt),
            Self::Rsqrt => work.run(|x| 1.0 / x.sqrt()),
            Self::Abs => work.run(f32::abs),
            Self::Log => work.run(ln),
            Self::Exp => work.run(exp),
            Self::Sigmoid => work.run(sigmoid),
            Self::Tanh => work.run(tanh),
            Self::Relu => work.run(rectify),
            Self::LeakyRelu(slope) => work.run(|x| leaky(x, slope)),
            Self::Gelu => work.run(gelu),
        }
    }

    /// Hands `work` the gradient, a function of what is saved and `dy`.
    #[inline(always)]
    pub(super) fn visit_grad(self, work: impl UnaryGradWork) {
        match self {
            Self::Neg => work.run(|_, dy| -dy),
            Self::Square => work.run(|x, dy| 2.0 * x * dy),
            Self::Sqrt => work.run(|y, dy| dy / (2.0 * y)),
            Self::Rsqrt => work.run(|y, dy| -0.5 * y * y * y * dy),
            Self::Abs => work.run(abs_grad),
            Self::Log => work.run(|x, dy| dy / x),
            Self::Exp => work.run(|y, dy| y * dy),
            Self::Sigmoid => work.run(|y, dy| y * (1.0 - y) * dy),
            Self::Tanh => work.run(|y, dy| (1.0 - y * y) * dy),
            Self::Relu => work.run(|y, dy| if y > 0.0 { dy } else { 0.0 }),
            Self::LeakyRelu(slope) => work.run(|x, dy| if x > 0.0 { dy } else { slope * dy }),
            Self::Gelu => work.run(|x, dy| gelu_slope(x) * dy),
        }
    }
}

/// A loop that takes a [`Unary`] as a closure, so that it is compiled once for each.
pub(super) trait UnaryWork {
    /// Mark it `#[inline(always)]`.
    fn run(self, f: impl Fn(f32) -> f32 + Sync);
}

/// A loop that takes the gradient of a [`Unary`] as a closure of what is saved and `dy`.
pub(super) trait UnaryGradWork {
    /// Mark it `#[inline(always)]`.
    fn run(self, f: impl Fn(f32, f32) -> f32 + Sync);
}

/// `dst[i] = f(x[i])`. Threads share long slices.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn unary(dst: &mut [f32], x: &[f32], f: Unary, threads: Threads) {
    expect_len("unary: dst", dst, x.len());
    f.visit(Map { dst, x, threads });
}

/// `x[i] = f(x[i])`. Threads share long slices.
pub fn unary_in_place(x: &mut [f32], f: Unary, threads: Threads) {
    f.visit(MapInPlace { x, threads });
}

/// `dst[i] = f′(x[i]) · dy[i]`, where `saved` is what [`Unary::saved`] names; if that is nothing, any slice as
/// long will do. Threads share long slices.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn unary_grad(dst: &mut [f32], saved: &[f32], dy: &[f32], f: Unary, threads: Threads) {
    expect_len("unary_grad: saved", saved, dst.len());
    expect_len("unary_grad: dy", dy, dst.len());
    f.visit_grad(MapGrad { dst, saved, dy, threads });
}

struct Map<'a> {
    dst: &'a mut [f32],
    x: &'a [f32],
    threads: Threads,
}

impl UnaryWork for Map<'_> {
    #[inline(always)]
    fn run(self, f: impl Fn(f32) -> f32 + Sync) {
        zip_map([self.dst], [self.x], |_, [x]| [f(x)], self.threads);
    }
}

struct MapInPlace<'a> {
    x: &'a mut [f32],
    threads: Threads,
}

impl UnaryWork for MapInPlace<'_> {
    #[inline(always)]
    fn run(self, f: impl Fn(f32) -> f32 + Sync) {
        zip_map([self.x], [], |[x], []| [f(x)], self.threads);
    }
}

struct MapGrad<'a> {
    dst: &'a mut [f32],
    saved: &'a [f32],
    dy: &'a [f32],
    threads: Threads,
}

impl UnaryGradWork for MapGrad<'_> {
    #[inline(always)]
    fn run(self, f: impl Fn(f32, f32) -> f32 + Sync) {
        zip_map([self.dst], [self.saved, self.dy], |_, [saved, dy]| [f(saved, dy)], self.threads);
    }
}

#[inline(always)]
fn abs_grad(x: f32, dy: f32) -> f32 {
    let signed = if x < 0.0 { -dy } else { dy };
    if x == 0.0 { 0.0 } else { signed }
}

#[inline(always)]
fn leaky(x: f32, slope: f32) -> f32 {
    if x < 0.0 { slope * x } else { x }
}

/// √(2/π), and the factor of the cube.
const GELU: [f32; 2] = [0.797_884_6, 0.044_715];

/// `1 + tanh u` is twice the sigmoid of `2u`, which does not cancel.
#[inline(always)]
fn gelu(x: f32) -> f32 {
    x * gelu_gate(x)
}

#[inline(always)]
fn gelu_gate(x: f32) -> f32 {
    sigmoid(2.0 * GELU[0] * (x + GELU[1] * x * x * x))
}

#[inline(always)]
fn gelu_slope(x: f32) -> f32 {
    let gate = gelu_gate(x);
    gate + x * gate * (1.0 - gate) * (2.0 * GELU[0] * (1.0 + 3.0 * GELU[1] * x * x))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::testing::{assert_close, bits, floats};

    const ALL: [Unary; 13] = [
        Unary::Rsqrt,
        Unary::Abs,
        Unary::Log,
        Unary::Neg,
        Unary::Square,
        Unary::Sqrt,
        Unary::Exp,
        Unary::Sigmoid,
        Unary::Tanh,
        Unary::Relu,
        Unary::LeakyRelu(0.2),
        Unary::LeakyRelu(-0.5),
        Unary::Gelu,
    ];

    fn reference(f: Unary, x: f64) -> f64 {
        match f {
            Unary::Neg => -x,
            Unary::Square => x * x,
            Unary::Sqrt => x.sqrt(),
            Unary::Rsqrt => 1.0 / x.sqrt(),
            Unary::Abs => x.abs(),
            Unary::Log => x.ln(),
            Unary::Exp => x.exp(),
            Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Unary::Tanh => x.tanh(),
            Unary::Relu => x.max(0.0),
            Unary::LeakyRelu(slope) => x * if x < 0.0 { f64::from(slope) } else { 1.0 },
            Unary::Gelu => {
                x / 2.0 * (1.0 + (std::f64::consts::FRAC_2_PI.sqrt() * (x + 0.044715 * x.powi(3))).tanh())
            }
        }
    }

    proptest! {
        #[test]
        fn agree_with_f64(len in 0usize..100, scale in 0.1f32..10.0, seed: u32) {
            let (x, dy) = (floats(len, seed.into()), floats(len, 1));
            for f in ALL {
                let mut x: Vec<f32> = x.iter().map(|x| x * scale).collect();
                // Away from the kinks, where a difference quotient means nothing.
                x.iter_mut().for_each(|x| *x = if x.abs() < 1e-3 { 0.5 } else { *x });
                if matches!(f, Unary::Sqrt | Unary::Rsqrt | Unary::Log) {
                    x.iter_mut().for_each(|x| *x = x.abs().max(0.05));
                }
                let mut y = vec![f32::NAN; len];
                unary(&mut y, &x, f, Threads::One);
                assert_close(&y, x.iter().map(|&x| reference(f, x.into())), 1.0);
                let mut in_place = x.clone();
                unary_in_place(&mut in_place, f, Threads::One);
                prop_assert_eq!(bits(&y), bits(&in_place));

                let saved = if f.saved() == Saved::Output { &y } else { &x };
                let mut dx = vec![f32::NAN; len];
                unary_grad(&mut dx, saved, &dy, f, Threads::One);
                for ((&x, &dy), &dx) in x.iter().zip(&dy).zip(&dx) {
                    let (x, h) = (f64::from(x), 1e-5);
                    let slope = (reference(f, x + h) - reference(f, x - h)) / (2.0 * h);
                    let error = (f64::from(dx) - slope * f64::from(dy)).abs();
                    prop_assert!(error <= 1e-5 * (1.0 + slope.abs()) * (1.0 + f64::from(dy).abs()), "{:?} at {}", f, x);
                }
            }
        }
    }

    #[test]
    fn a_nan_stays_a_nan() {
        for f in ALL {
            let mut x = [f32::NAN; 35];
            unary_in_place(&mut x, f, Threads::One);
            assert!(x.iter().all(|x| x.is_nan()), "{f:?}");
        }
    }
}
