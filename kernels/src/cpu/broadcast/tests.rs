//! Tests broadcasting and reductions against `f64`, element by element.

use proptest::prelude::*;

use super::*;
use crate::cpu::Threads;
use crate::cpu::tests::{assert_close, floats};

/// Draws two shapes that can be broadcast together, and the shape of the result.
fn shapes() -> impl Strategy<Value = [Vec<usize>; 3]> {
    let axis = (prop_oneof![0usize..6, 15usize..18], 0..4);
    (prop::collection::vec(axis, 0..5), 0usize..5, any::<bool>()).prop_map(|(axes, cut, swap)| {
        let a: Vec<_> = axes.iter().map(|&(size, kind)| if kind == 0 { 1 } else { size }).collect();
        let b: Vec<_> = axes.iter().map(|&(size, kind)| if kind == 1 { 1 } else { size }).collect();
        let b = b[cut.min(b.len())..].to_vec();
        let missing = a.len() - b.len();
        let both = a.iter().enumerate().map(|(i, &a)| match i.checked_sub(missing) {
            Some(i) if a == 1 => b[i],
            _ => a,
        });
        let both = both.collect();
        if swap { [b, a, both] } else { [a, b, both] }
    })
}

/// Broadcasts a tensor of the shape `shape` to the shape `result`. Returns the index, in the tensor, of the
/// element that becomes element `index` of the result.
fn source(mut index: usize, result: &[usize], shape: &[usize]) -> usize {
    let (mut at, mut step) = (0, 1);
    for from_last in 0..result.len() {
        let size = result[result.len() - 1 - from_last];
        if let Some(&own) = shape.iter().rev().nth(from_last) {
            at += if own == 1 { 0 } else { index % size * step };
            step *= own;
        }
        index /= size;
    }
    at
}

proptest! {
    #[test]
    fn agree_with_f64([a_shape, b_shape, result] in shapes(), seed: u32) {
        let shapes = Broadcast::new(&a_shape, &b_shape).unwrap();
        let len = result.iter().product();
        prop_assert_eq!(shapes.len(), len);
        let a = floats(a_shape.iter().product(), seed.into());
        let b = floats(b_shape.iter().product(), 1);
        for (f, reference) in [
            (Binary::Add, (|a, b| a + b) as fn(f64, f64) -> f64),
            (Binary::Sub, |a, b| a - b),
            (Binary::Mul, |a, b| a * b),
            (Binary::Div, |a, b| a / b),
        ] {
            let mut dst = vec![f32::NAN; len];
            binary(&mut dst, &a, &b, f, &shapes, Threads::One);
            let want = |i| {
                let (a, b) = (a[source(i, &result, &a_shape)], b[source(i, &result, &b_shape)]);
                reference(a.into(), b.into())
            };
            assert_close(&dst, (0..len).map(want), 0.0);
        }
        let x = floats(len, 2);
        for (side, shape) in [(Side::A, &a_shape), (Side::B, &b_shape)] {
            let small = shape.iter().product::<usize>();
            let (mut sums, mut maxima) = (vec![0.0; small], vec![f64::NEG_INFINITY; small]);
            for (i, &x) in x.iter().enumerate() {
                let at = source(i, &result, shape);
                sums[at] += f64::from(x);
                maxima[at] = f64::from(x).max(maxima[at]);
            }
            let mut dst = vec![f32::NAN; small];
            reduce(&mut dst, &x, Reduction::Sum, &shapes, side);
            assert_close(&dst, sums.iter().copied(), 4.0 * (len as f64).sqrt());
            if len > 0 {
                reduce(&mut dst, &x, Reduction::Mean, &shapes, side);
                assert_close(&dst, sums.iter().map(|sum| sum / (len / small) as f64), 4.0);
                reduce(&mut dst, &x, Reduction::Max, &shapes, side);
                assert_close(&dst, maxima, 0.0);
            }
        }
    }
}

#[test]
fn shapes_that_do_not_fit() {
    let differ = BadShapes::Differ { from_last: 1, sizes: [2, 3] };
    assert_eq!(Broadcast::new(&[2, 4], &[5, 3, 4]), Err(differ));
    assert_eq!(Broadcast::new(&[1; 9], &[]), Err(BadShapes::Rank(9)));
    assert_eq!(Broadcast::new(&[1 << 40, 1], &[1 << 40]), Err(BadShapes::TooLarge));
    assert_eq!(Broadcast::new(&[0, usize::MAX, 1], &[1 << 40]), Err(BadShapes::TooLarge));
}

#[test]
fn a_nan_is_the_maximum() {
    let shapes = Broadcast::new(&[1], &[3]).unwrap();
    let mut max = [0.0];
    reduce(&mut max, &[1.0, f32::NAN, 2.0], Reduction::Max, &shapes, Side::A);
    assert!(max[0].is_nan());
}
