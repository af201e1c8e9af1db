//! Arithmetic on numbers of all types.

use pushpull_messages::graph::{BinaryOp, UnaryOp};
use pushpull_messages::tensor::{Elements, Shape, Tensor};

use super::indices::{broadcast, positions};
use super::number::{HostFault, Number, for_numbers};

/// Makes the tensor of a shape that inference has checked.
pub(super) fn tensor(shape: Shape, elements: impl Into<Elements>) -> Tensor {
    Tensor::new(shape, elements).expect("as many elements as the shape has")
}

pub(super) fn unary(op: UnaryOp, x: &Tensor) -> Tensor {
    fn each<T: Number>(op: UnaryOp, x: &[T]) -> Vec<T> {
        x.iter().map(|&x| T::unary(op, x)).collect()
    }
    for_numbers!(x, elements => tensor(x.shape().clone(), each(op, elements)))
}

pub(super) fn binary(op: BinaryOp, a: &Tensor, b: &Tensor) -> Result<Tensor, HostFault> {
    fn each<T: Number>(op: BinaryOp, pairs: impl Iterator<Item = (T, T)>) -> Result<Vec<T>, HostFault> {
        pairs.map(|(a, b)| T::binary(op, a, b).ok_or(HostFault::DivisionByZero)).collect()
    }
    let shape = broadcast(&[a.shape(), b.shape()]);
    let (of_a, of_b) = (positions(a.shape(), &shape), positions(b.shape(), &shape));
    macro_rules! pairs {
        ($a:ident, $b:ident) => {
            of_a.zip(of_b).map(|(of_a, of_b)| ($a[of_a], $b[of_b]))
        };
    }
    let elements: Elements = match (a.elements(), b.elements()) {
        (Elements::F32(a), Elements::F32(b)) => each(op, pairs!(a, b))?.into(),
        (Elements::I32(a), Elements::I32(b)) => each(op, pairs!(a, b))?.into(),
        (Elements::I64(a), Elements::I64(b)) => each(op, pairs!(a, b))?.into(),
        (Elements::F64(a), Elements::F64(b)) => each(op, pairs!(a, b))?.into(),
        (Elements::U8(a), Elements::U8(b)) => each(op, pairs!(a, b))?.into(),
        _ => unreachable!("numbers of one type, by inference"),
    };
    Ok(tensor(shape, elements))
}

/// Adds tensors of one spec, in their order.
pub(super) fn add_n(inputs: &[&Tensor]) -> Tensor {
    let (first, rest) = inputs.split_first().expect("at least one input, by inference");
    let sum = |sum: Tensor, next: &&Tensor| {
        binary(BinaryOp::Add, &sum, next).expect("an addition divides by nothing")
    };
    rest.iter().fold(Tensor::clone(first), sum)
}
