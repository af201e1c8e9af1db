//! Reductions along axes, for numbers of all types.

use pushpull_messages::graph::ReductionOp;
use pushpull_messages::tensor::{Elements, Shape, Tensor};

use super::arithmetic::tensor;
use super::indices::{Positions, positions};
use super::number::{Number, for_numbers};

pub(super) fn reduce(reduction: ReductionOp, x: &Tensor, axes: &[usize], keep: bool) -> Tensor {
    let extents = x.shape().0.iter().enumerate();
    let kept = Shape(extents.map(|(axis, &extent)| if axes.contains(&axis) { 1 } else { extent }).collect());
    let to = positions(&kept, x.shape());
    let left = kept.0.iter().enumerate().filter(|(axis, _)| keep || !axes.contains(axis));
    let shape = Shape(left.map(|(_, &extent)| extent).collect());
    for_numbers!(x, elements => tensor(shape, of_elements(reduction, elements, to, kept.elements())))
}

/// Reduces elements to `count` ones; each goes to the next position of `to`.
fn of_elements<T: Number>(reduction: ReductionOp, x: &[T], to: Positions, count: usize) -> Vec<T> {
    let mut reduced: Vec<Option<T>> = vec![None; count];
    for (&x, to) in x.iter().zip(to) {
        reduced[to] = Some(match (reduced[to], reduction) {
            (None, _) => x,
            (Some(before), ReductionOp::Max) => {
                // The comparison is false for NaN, which then stays or replaces a number.
                if before >= x || before.partial_cmp(&before).is_none() { before } else { x }
            }
            (Some(before), ReductionOp::Sum | ReductionOp::Mean) => T::add(before, x),
        });
    }
    let terms = x.len() / count.max(1);
    let finish = |reduced: Option<T>| match reduction {
        ReductionOp::Mean => T::divided(reduced.unwrap_or_default(), terms),
        _ => reduced.unwrap_or_default(),
    };
    reduced.into_iter().map(finish).collect()
}
