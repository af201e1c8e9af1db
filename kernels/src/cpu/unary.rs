//! Functions of one number, element by element, and their gradients. They must not know layers.

use super::dispatch::zip_map;
use super::exp::{exp, sigmoid, tanh};
use super::relu::rectify;

/// A function of one number. A NaN stays a NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unary {
    /// `−x`.
    Neg,
    /// `x²`.
    Square,
    /// `√x`.
    Sqrt,
    /// `eˣ`, to 2 units in the last place.
    Exp,
    /// `1 / (1 + e⁻ˣ)`, to 4 units in the last place.
    Sigmoid,
    /// The hyperbolic tangent, to 4 units in the last place.
    Tanh,
    /// `max(x, 0)`, as [`relu`](super::relu()).
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
            Self::Square | Self::LeakyRelu(_) | Self::Gelu => Saved::Input,
            Self::Sqrt | Self::Exp | Self::Sigmoid | Self::Tanh | Self::Relu => Saved::Output,
        }
    }
}

/// `dst[i] = f(x[i])`.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn unary(dst: &mut [f32], x: &[f32], f: Unary) {
    match f {
        Unary::Neg => zip_map([dst], [x], |_, [x]| [-x]),
        Unary::Square => zip_map([dst], [x], |_, [x]| [x * x]),
        Unary::Sqrt => zip_map([dst], [x], |_, [x]| [x.sqrt()]),
        Unary::Exp => zip_map([dst], [x], |_, [x]| [exp(x)]),
        Unary::Sigmoid => zip_map([dst], [x], |_, [x]| [sigmoid(x)]),
        Unary::Tanh => zip_map([dst], [x], |_, [x]| [tanh(x)]),
        Unary::Relu => zip_map([dst], [x], |_, [x]| [rectify(x)]),
        Unary::LeakyRelu(slope) => zip_map([dst], [x], |_, [x]| [leaky(x, slope)]),
        Unary::Gelu => zip_map([dst], [x], |_, [x]| [gelu(x)]),
    }
}

/// `x[i] = f(x[i])`.
pub fn unary_in_place(x: &mut [f32], f: Unary) {
    match f {
        Unary::Neg => zip_map([x], [], |[x], []| [-x]),
        Unary::Square => zip_map([x], [], |[x], []| [x * x]),
        Unary::Sqrt => zip_map([x], [], |[x], []| [x.sqrt()]),
        Unary::Exp => zip_map([x], [], |[x], []| [exp(x)]),
        Unary::Sigmoid => zip_map([x], [], |[x], []| [sigmoid(x)]),
        Unary::Tanh => zip_map([x], [], |[x], []| [tanh(x)]),
        Unary::Relu => zip_map([x], [], |[x], []| [rectify(x)]),
        Unary::LeakyRelu(slope) => zip_map([x], [], |[x], []| [leaky(x, slope)]),
        Unary::Gelu => zip_map([x], [], |[x], []| [gelu(x)]),
    }
}

/// `dst[i] = f′(x[i]) · dy[i]`, where `saved` is what [`Unary::saved`] names; if that is nothing, any slice as
/// long will do.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn unary_grad(dst: &mut [f32], saved: &[f32], dy: &[f32], f: Unary) {
    match f {
        Unary::Neg => zip_map([dst], [saved, dy], |_, [_, dy]| [-dy]),
        Unary::Square => zip_map([dst], [saved, dy], |_, [x, dy]| [2.0 * x * dy]),
        Unary::Sqrt => zip_map([dst], [saved, dy], |_, [y, dy]| [dy / (2.0 * y)]),
        Unary::Exp => zip_map([dst], [saved, dy], |_, [y, dy]| [y * dy]),
        Unary::Sigmoid => zip_map([dst], [saved, dy], |_, [y, dy]| [y * (1.0 - y) * dy]),
        Unary::Tanh => zip_map([dst], [saved, dy], |_, [y, dy]| [(1.0 - y * y) * dy]),
        Unary::Relu => zip_map([dst], [saved, dy], |_, [y, dy]| [if y > 0.0 { dy } else { 0.0 }]),
        Unary::LeakyRelu(slope) => {
            zip_map([dst], [saved, dy], |_, [x, dy]| [if x > 0.0 { dy } else { slope * dy }]);
        }
        Unary::Gelu => zip_map([dst], [saved, dy], |_, [x, dy]| [gelu_slope(x) * dy]),
    }
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

    const ALL: [Unary; 10] = [
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
                if f == Unary::Sqrt {
                    x.iter_mut().for_each(|x| *x = x.abs());
                }
                let mut y = vec![f32::NAN; len];
                unary(&mut y, &x, f);
                assert_close(&y, x.iter().map(|&x| reference(f, x.into())), 1.0);
                let mut in_place = x.clone();
                unary_in_place(&mut in_place, f);
                prop_assert_eq!(bits(&y), bits(&in_place));

                let saved = if f.saved() == Saved::Output { &y } else { &x };
                let mut dx = vec![f32::NAN; len];
                unary_grad(&mut dx, saved, &dy, f);
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
            unary_in_place(&mut x, f);
            assert!(x.iter().all(|x| x.is_nan()), "{f:?}");
        }
    }
}
