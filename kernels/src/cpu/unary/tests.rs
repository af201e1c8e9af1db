//! Tests the unary functions and their gradients against `f64`.

use proptest::prelude::*;

use super::*;
use crate::cpu::Threads;
use crate::cpu::tests::{assert_close, bits, floats};

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
            // Inputs stay away from the kinks, where a difference quotient means nothing.
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
