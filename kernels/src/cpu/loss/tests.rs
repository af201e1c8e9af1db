//! Tests the losses that take dense targets against `f64`, and their gradients against difference quotients.

use proptest::prelude::*;

use super::*;
use crate::cpu::Threads;
use crate::cpu::tests::{assert_close, floats};

/// Checks that `grad` agrees with the difference quotients of `loss` at `x`, which are computed in `f64` and
/// multiplied by `upstream`.
fn check_grad(grad: &[f32], x: &[f64], upstream: f32, loss: impl Fn(&[f64]) -> f64) {
    let h = 1e-5;
    let slope = |i: usize| {
        let at = |h: f64| {
            let mut x = x.to_vec();
            x[i] += h;
            loss(&x)
        };
        (at(h) - at(-h)) / (2.0 * h) * f64::from(upstream)
    };
    assert_close(grad, (0..x.len()).map(slope), 10.0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn agree_with_f64(rows in 1usize..6, n in 1usize..20, upstream in -2f32..2.0, seed: u32) {
        let x = floats(rows * n, seed.into());
        let z: Vec<f32> = floats(rows * n, 1).iter().map(|z| z.abs().min(1.0)).collect();
        let [x64, z64] = [&x, &z].map(|x| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
        let len = x.len() as f64;
        let mut dx = vec![f32::NAN; x.len()];

        let loss = |x: &[f64]| {
            let row = |(x, z): (&[f64], &[f64])| {
                let sum = x.iter().map(|x| x.exp()).sum::<f64>().ln();
                x.iter().zip(z).map(|(x, z)| z * (sum - x)).sum::<f64>()
            };
            x.chunks(n).zip(z64.chunks(n)).map(row).sum::<f64>() / rows as f64
        };
        assert_close(&[softmax_cross_entropy_dense(&x, &z, n)], [loss(&x64)], 4.0);
        softmax_cross_entropy_dense_grad(&mut dx, &x, &z, n, upstream, Threads::One);
        check_grad(&dx, &x64, upstream, loss);

        let loss = |x: &[f64]| {
            let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
            let term = |(&x, &z): (&f64, &f64)| z * sigmoid(x).ln() + (1.0 - z) * sigmoid(-x).ln();
            -x.iter().zip(&z64).map(term).sum::<f64>() / len
        };
        assert_close(&[sigmoid_cross_entropy(&x, &z)], [loss(&x64)], 4.0);
        sigmoid_cross_entropy_grad(&mut dx, &x, &z, upstream, Threads::One);
        check_grad(&dx, &x64, upstream, loss);

        let loss = |x: &[f64]| x.iter().zip(&z64).map(|(x, z)| (x - z).powi(2)).sum::<f64>() / len;
        assert_close(&[mean_squared_error(&x, &z)], [loss(&x64)], 1.0);
        mean_squared_error_grad(&mut dx, &x, &z, upstream, Threads::One);
        check_grad(&dx, &x64, upstream, loss);
    }
}

#[test]
fn extremes() {
    let max = f32::MAX;
    assert_eq!(sigmoid_cross_entropy(&[max, -max], &[1.0, 0.0]), 0.0);
    assert_eq!(softmax_cross_entropy_dense(&[max, 0.0], &[1.0, 0.0], 2), 0.0);
    assert_eq!((mean_squared_error(&[], &[]), sigmoid_cross_entropy(&[], &[])), (0.0, 0.0));
    assert_eq!(softmax_cross_entropy_dense(&[], &[], 0), 0.0);
}
