//! Tests of the host operations: examples by hand, and properties of random tensors.

use proptest::prelude::*;
use pushpull_messages::graph::{BinaryOp, Comparison, Logic, ReductionOp, SessionOp, UnaryOp};
use pushpull_messages::tensor::{DType, Tensor};

use super::{HostFault, compute};

fn of<const N: usize>(shape: [usize; N], values: Vec<i64>) -> Tensor {
    Tensor::new(shape, values).unwrap()
}

fn run(op: SessionOp, inputs: &[&Tensor]) -> Tensor {
    compute(&op, inputs).unwrap()
}

#[test]
fn arithmetic_is_broadcast_and_wraps() {
    let (matrix, row) = (of([2, 3], vec![1, 2, 3, 4, 5, 6]), of([3], vec![10, 20, 30]));
    let sum = run(SessionOp::Binary(BinaryOp::Add), &[&matrix, &row]);
    assert_eq!(sum, of([2, 3], vec![11, 22, 33, 14, 25, 36]));
    let column = of([2, 1], vec![1, 2]);
    let product = run(SessionOp::Binary(BinaryOp::Mul), &[&column, &row]);
    assert_eq!(product, of([2, 3], vec![10, 20, 30, 20, 40, 60]));
    let scalar = Tensor::from(2i64);
    assert_eq!(run(SessionOp::Binary(BinaryOp::Div), &[&row, &scalar]), of([3], vec![5, 10, 15]));
    let largest = Tensor::from(i32::MAX);
    assert_eq!(run(SessionOp::Binary(BinaryOp::Add), &[&largest, &1i32.into()]), Tensor::from(i32::MIN));
    assert_eq!(run(SessionOp::Unary(UnaryOp::Abs), &[&i64::MIN.into()]), Tensor::from(i64::MIN));
    assert_eq!(run(SessionOp::Unary(UnaryOp::Relu), &[&of([2], vec![-3, 4])]), of([2], vec![0, 4]));
    assert_eq!(run(SessionOp::AddN, &[&row, &row, &row]), of([3], vec![30, 60, 90]));
    let zero = Tensor::from(0u8);
    let divided = compute(&SessionOp::Binary(BinaryOp::Div), &[&1u8.into(), &zero]);
    assert_eq!(divided, Err(HostFault::DivisionByZero));
    assert_eq!(run(SessionOp::Binary(BinaryOp::Div), &[&i32::MIN.into(), &(-1i32).into()]), i32::MIN.into());
}

#[test]
fn casts_are_limited_and_towards_zero() {
    let floats = Tensor::from(vec![-1.9f32, 2.9, f32::NAN, 1e20, 0.0]);
    let cast = |to| run(SessionOp::Cast { to }, &[&floats]);
    assert_eq!(cast(DType::I32), Tensor::from(vec![-1i32, 2, 0, i32::MAX, 0]));
    assert_eq!(cast(DType::U8), Tensor::from(vec![0u8, 2, 0, 255, 0]));
    assert_eq!(cast(DType::Bool), Tensor::from(vec![true, true, true, true, false]));
    let truths = Tensor::from(vec![true, false]);
    assert_eq!(run(SessionOp::Cast { to: DType::F64 }, &[&truths]), Tensor::from(vec![1.0f64, 0.0]));
    let wide = Tensor::from(vec![257i64]);
    assert_eq!(run(SessionOp::Cast { to: DType::U8 }, &[&wide]), Tensor::from(vec![1u8]));
}

#[test]
fn comparisons_and_choices_follow_their_order() {
    let (a, b) = (Tensor::from(vec![1.0f32, f32::NAN, 3.0]), Tensor::from(vec![1.0f32, 2.0, 2.0]));
    let compare = |comparison| run(SessionOp::Compare(comparison), &[&a, &b]);
    assert_eq!(compare(Comparison::LessEqual), Tensor::from(vec![true, false, false]));
    assert_eq!(compare(Comparison::NotEqual), Tensor::from(vec![false, true, true]));
    let texts = Tensor::from(["x", "y"]);
    let equal = run(SessionOp::Compare(Comparison::Equal), &[&texts, &"y".into()]);
    assert_eq!(equal, Tensor::from(vec![false, true]));
    assert_eq!(run(SessionOp::Logical(Logic::Not), &[&equal]), Tensor::from(vec![true, false]));
    let chosen = run(SessionOp::Select, &[&equal, &texts, &"z".into()]);
    assert_eq!(chosen, Tensor::from(["z", "y"]));
    // NaN is never the largest, and the first of equal elements is taken.
    let rows = Tensor::new([2, 3], vec![f32::NAN, 5.0, 5.0, 1.0, f32::NAN, 2.0]).unwrap();
    assert_eq!(run(SessionOp::ArgMax { axis: 1 }, &[&rows]), Tensor::from(vec![1i64, 2]));
    assert_eq!(run(SessionOp::ArgMax { axis: 0 }, &[&rows]), Tensor::from(vec![1i64, 0, 0]));
    let indices = run(SessionOp::TopIndices { k: 2 }, &[&rows]);
    assert_eq!(indices, Tensor::new([2, 2], vec![1i32, 2, 2, 0]).unwrap());
    let values = run(SessionOp::TopValues { k: 2 }, &[&rows]);
    assert_eq!(values, Tensor::new([2, 2], vec![5.0f32, 5.0, 2.0, 1.0]).unwrap());
}

proptest! {
    /// A reduction along some axes equals one by hand over all positions.
    #[test]
    fn reductions_are_those_by_hand(
        shape in prop::collection::vec(1usize..4, 1..4),
        chosen in any::<[bool; 4]>(),
        keep in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let axes: Vec<usize> = (0..shape.len()).filter(|&axis| chosen[axis]).collect();
        prop_assume!(!axes.is_empty());
        let count = shape.iter().product::<usize>();
        let values: Vec<i64> = (0..count as u64).map(|i| (seed.wrapping_mul(i + 1) >> 40) as i64 - 4000).collect();
        let mut sums = std::collections::BTreeMap::new();
        for (position, &value) in values.iter().enumerate() {
            let mut rest = position;
            let mut index = vec![0; shape.len()];
            for axis in (0..shape.len()).rev() {
                index[axis] = rest % shape[axis];
                rest /= shape[axis];
            }
            let left: Vec<usize> = (0..shape.len()).filter(|axis| !axes.contains(axis)).map(|axis| index[axis]).collect();
            let (sum, max) = sums.entry(left).or_insert((0i64, i64::MIN));
            *sum += value;
            *max = value.max(*max);
        }
        let x = Tensor::new(shape.clone(), values).unwrap();
        let reduce = |reduction| {
            let op = SessionOp::Reduce { reduction, axes: axes.clone(), keep };
            run(op, &[&x])
        };
        let expected: Vec<i64> = sums.values().map(|own| own.0).collect();
        let sum = reduce(ReductionOp::Sum);
        prop_assert_eq!(sum.i64s().unwrap(), &expected[..]);
        let expected: Vec<i64> = sums.values().map(|own| own.1).collect();
        let max = reduce(ReductionOp::Max);
        prop_assert_eq!(max.i64s().unwrap(), &expected[..]);
        let rank = if keep { shape.len() } else { shape.len() - axes.len() };
        prop_assert_eq!(max.shape().rank(), rank);
    }

    /// The k largest elements are the first of a sorted row, whatever the row.
    #[test]
    fn the_largest_elements_are_sorted(values in prop::collection::vec(-5i32..5, 1..9), k in 1usize..9) {
        let k = k.min(values.len());
        let mut sorted: Vec<(i32, i32)> =
            values.iter().zip(0..).map(|(&value, index)| (-value, index)).collect();
        sorted.sort_unstable();
        let x = Tensor::from(values);
        let indices: Vec<i32> = sorted[..k].iter().map(|own| own.1).collect();
        prop_assert_eq!(run(SessionOp::TopIndices { k }, &[&x]), Tensor::from(indices));
        let largest: Vec<i32> = sorted[..k].iter().map(|own| -own.0).collect();
        prop_assert_eq!(run(SessionOp::TopValues { k }, &[&x]), Tensor::from(largest));
        let best = run(SessionOp::ArgMax { axis: 0 }, &[&x]);
        prop_assert_eq!(best, Tensor::from(i64::from(sorted[0].1)));
    }
}
