//! Comparisons, and functions of truth values.

use pushpull_messages::graph::{Comparison, Logic};
use pushpull_messages::tensor::{Elements, Tensor};

use super::arithmetic::tensor;
use super::indices::{broadcast, positions};

pub(super) fn compare(comparison: Comparison, a: &Tensor, b: &Tensor) -> Tensor {
    let shape = broadcast(&[a.shape(), b.shape()]);
    let (of_a, of_b) = (positions(a.shape(), &shape), positions(b.shape(), &shape));
    macro_rules! holds {
        ($a:ident, $b:ident) => {
            of_a.zip(of_b).map(|(of_a, of_b)| holds(comparison, &$a[of_a], &$b[of_b])).collect()
        };
    }
    let truths: Vec<bool> = match (a.elements(), b.elements()) {
        (Elements::F32(a), Elements::F32(b)) => holds!(a, b),
        (Elements::I32(a), Elements::I32(b)) => holds!(a, b),
        (Elements::I64(a), Elements::I64(b)) => holds!(a, b),
        (Elements::F64(a), Elements::F64(b)) => holds!(a, b),
        (Elements::U8(a), Elements::U8(b)) => holds!(a, b),
        (Elements::Bool(a), Elements::Bool(b)) => holds!(a, b),
        (Elements::Text(a), Elements::Text(b)) => holds!(a, b),
        _ => unreachable!("two of one type, by inference"),
    };
    tensor(shape, truths)
}

fn holds<T: PartialOrd>(comparison: Comparison, a: &T, b: &T) -> bool {
    match comparison {
        Comparison::Equal => a == b,
        Comparison::NotEqual => a != b,
        Comparison::Less => a < b,
        Comparison::LessEqual => a <= b,
        Comparison::Greater => a > b,
        Comparison::GreaterEqual => a >= b,
    }
}

pub(super) fn logical(logic: Logic, inputs: &[&Tensor]) -> Tensor {
    fn truths(input: &Tensor) -> &[bool] {
        input.bools().expect("truth values, by inference")
    }
    if logic == Logic::Not {
        let truths: Vec<bool> = truths(inputs[0]).iter().map(|truth| !truth).collect();
        return tensor(inputs[0].shape().clone(), truths);
    }
    let (a, b) = (inputs[0], inputs[1]);
    let shape = broadcast(&[a.shape(), b.shape()]);
    let pairs = positions(a.shape(), &shape).zip(positions(b.shape(), &shape));
    let (a, b) = (truths(a), truths(b));
    let both = pairs.map(|(of_a, of_b)| match logic {
        Logic::And => a[of_a] && b[of_b],
        _ => a[of_a] || b[of_b],
    });
    let both: Vec<bool> = both.collect();
    tensor(shape, both)
}
