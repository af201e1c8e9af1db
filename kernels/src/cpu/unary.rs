//! Functions of one number, element by element, and their gradients. They must not know layers.

use pulp::{Simd, WithSimd};

use super::dispatch::{ZipMap, dispatch, zip_map_loop};
use super::exp::{exp, ln, sigmoid, tanh};
use super::relu::rectify;
use super::shape::expect_len;
use super::threads::{ELEMENTS_PER_TASK, Threads, share_rows};

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

    /// Hands `work` the gradient, a function of what is saved and `dy`.
    #[inline(always)]
    pub(super) fn visit_grad(self, work: impl UnaryGradWork) {
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

/// A loop over a [`Unary`], which it takes as a type, so that it is compiled for each.
///
/// The functions are named, not closures: a closure would be another type in each caller, and every loop over it
/// compiled once more.
pub(super) trait UnaryWork {
    /// Runs the loop. Mark it `#[inline(always)]`.
    fn run(self, f: impl Fn(f32) -> f32 + Copy + Sync);
}

/// A loop over the gradient of a [`Unary`], a function of the saved value and `dy`.
pub(super) trait UnaryGradWork {
    /// Runs the loop. Mark it `#[inline(always)]`.
    fn run(self, f: impl Fn(f32, f32) -> f32 + Copy + Sync);
}

/// `dst[i] = f(x[i])`. Threads share long slices.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn unary(dst: &mut [f32], x: &[f32], f: Unary, threads: Threads) {
    expect_len("unary: dst", dst, x.len());
    share_rows([(dst, 1)], x.len(), threads.tasks(x.len(), ELEMENTS_PER_TASK), &|[dst], part| {
        f.visit(Map { dst, x: &x[part] });
    });
}

/// `x[i] = f(x[i])`. Threads share long slices.
pub fn unary_in_place(x: &mut [f32], f: Unary, threads: Threads) {
    let len = x.len();
    share_rows([(x, 1)], len, threads.tasks(len, ELEMENTS_PER_TASK), &|[x], _| f.visit(MapInPlace { x }));
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
    let (len, tasks) = (dst.len(), threads.tasks(dst.len(), ELEMENTS_PER_TASK));
    share_rows([(dst, 1)], len, tasks, &|[dst], part| {
        f.visit_grad(MapGrad { dst, saved: &saved[part.clone()], dy: &dy[part] });
    });
}

struct Map<'a> {
    dst: &'a mut [f32],
    x: &'a [f32],
}

impl UnaryWork for Map<'_> {
    #[inline(always)]
    fn run(self, f: impl Fn(f32) -> f32 + Copy + Sync) {
        dispatch(ZipMap { written: [self.dst], read: [self.x], f: move |_: [f32; 1], [x]: [f32; 1]| [f(x)] });
    }
}

struct MapInPlace<'a> {
    x: &'a mut [f32],
}

impl UnaryWork for MapInPlace<'_> {
    #[inline(always)]
    fn run(self, f: impl Fn(f32) -> f32 + Copy + Sync) {
        dispatch(InPlace { x: self.x, f });
    }
}

/// The loop of [`unary_in_place`] over one function.
pub(super) struct InPlace<'a, F> {
    pub x: &'a mut [f32],
    pub f: F,
}

impl<F: Fn(f32) -> f32> WithSimd for InPlace<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        zip_map_loop([self.x], [], |[x], []| [(self.f)(x)]);
    }
}

struct MapGrad<'a> {
    dst: &'a mut [f32],
    saved: &'a [f32],
    dy: &'a [f32],
}

impl UnaryGradWork for MapGrad<'_> {
    #[inline(always)]
    fn run(self, f: impl Fn(f32, f32) -> f32 + Copy + Sync) {
        let read = [self.saved, self.dy];
        dispatch(ZipMap {
            written: [self.dst],
            read,
            f: move |_: [f32; 1], [saved, dy]: [f32; 2]| [f(saved, dy)],
        });
    }
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
fn gelu_grad(x: f32, dy: f32) -> f32 {
    let gate = gelu_gate(x);
    let slope = gate + x * gate * (1.0 - gate) * (2.0 * GELU[0] * (1.0 + 3.0 * GELU[1] * x * x));
    slope * dy
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
