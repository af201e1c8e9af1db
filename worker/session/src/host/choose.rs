//! Choices of elements: by a condition, and by size.

use std::cmp::Ordering;

use pushpull_messages::tensor::{Elements, Shape, Tensor};

use super::arithmetic::tensor;
use super::indices::{Rows, broadcast, positions};
use super::number::for_numbers;

pub(super) fn select(condition: &Tensor, a: &Tensor, b: &Tensor) -> Tensor {
    let shape = broadcast(&[condition.shape(), a.shape(), b.shape()]);
    let truths = condition.bools().expect("truth values, by inference");
    let of_condition = positions(condition.shape(), &shape);
    let (of_a, of_b) = (positions(a.shape(), &shape), positions(b.shape(), &shape));
    macro_rules! chosen {
        ($a:ident, $b:ident) => {{
            let from = of_condition.zip(of_a.zip(of_b));
            let chosen =
                from.map(|(c, (of_a, of_b))| if truths[c] { $a[of_a].clone() } else { $b[of_b].clone() });
            chosen.collect::<Vec<_>>().into()
        }};
    }
    let elements: Elements = match (a.elements(), b.elements()) {
        (Elements::F32(a), Elements::F32(b)) => chosen!(a, b),
        (Elements::I32(a), Elements::I32(b)) => chosen!(a, b),
        (Elements::I64(a), Elements::I64(b)) => chosen!(a, b),
        (Elements::F64(a), Elements::F64(b)) => chosen!(a, b),
        (Elements::U8(a), Elements::U8(b)) => chosen!(a, b),
        (Elements::Bool(a), Elements::Bool(b)) => chosen!(a, b),
        (Elements::Text(a), Elements::Text(b)) => chosen!(a, b),
        _ => unreachable!("two of one type, by inference"),
    };
    tensor(shape, elements)
}

/// Returns the largest number of bytes that a choice between texts can take; 0 if they are no texts.
pub(super) fn text_bytes(condition: &Tensor, a: &Tensor, b: &Tensor) -> u64 {
    let (Some(of_a), Some(of_b)) = (a.texts(), b.texts()) else { return 0 };
    let elements = broadcast(&[condition.shape(), a.shape(), b.shape()]).elements() as u64;
    let longest = of_a.iter().chain(of_b).map(|text| text.len() + size_of::<String>()).max();
    elements.saturating_mul(longest.unwrap_or(0) as u64)
}

/// Orders elements from the largest to the smallest; NaN comes last.
fn descending<T: PartialOrd>(a: &T, b: &T) -> Ordering {
    let is_nan = |x: &T| x.partial_cmp(x).is_none();
    b.partial_cmp(a).unwrap_or_else(|| is_nan(a).cmp(&is_nan(b)))
}

pub(super) fn arg_max(x: &Tensor, axis: usize) -> Tensor {
    fn of_rows<T: PartialOrd>(x: &[T], rows: Rows) -> Vec<i64> {
        let best = rows.each().map(|row| {
            let best = row.enumerate().reduce(|best, next| match descending(&x[best.1], &x[next.1]) {
                Ordering::Greater => next,
                _ => best,
            });
            best.map_or(0, |(index, _)| index as i64)
        });
        best.collect()
    }
    let rows = Rows::along(x.shape(), axis);
    let mut shape = x.shape().clone();
    shape.0.remove(axis);
    for_numbers!(x, elements => tensor(shape, of_rows(elements, rows)))
}

/// Returns the positions of the `k` largest elements of each row, and their indices in the row. The earlier
/// of two equal elements comes first.
fn largest<T: PartialOrd>(x: &[T], rows: Rows, k: usize) -> impl Iterator<Item = (usize, usize)> {
    rows.each().flat_map(move |row| {
        let mut row: Vec<(usize, usize)> =
            row.enumerate().map(|(index, position)| (position, index)).collect();
        row.sort_by(|a, b| descending(&x[a.0], &x[b.0]));
        row.truncate(k);
        row
    })
}

fn shape_of_top(x: &Tensor, k: usize) -> (Rows, Shape) {
    let axis = x.shape().rank() - 1;
    let mut shape = x.shape().clone();
    shape.0[axis] = k;
    (Rows::along(x.shape(), axis), shape)
}

pub(super) fn top_values(x: &Tensor, k: usize) -> Tensor {
    let (rows, shape) = shape_of_top(x, k);
    for_numbers!(x, elements => {
        let largest = largest(elements, rows, k);
        tensor(shape, largest.map(|(position, _)| elements[position]).collect::<Vec<_>>())
    })
}

pub(super) fn top_indices(x: &Tensor, k: usize) -> Tensor {
    let (rows, shape) = shape_of_top(x, k);
    for_numbers!(x, elements => {
        let largest = largest(elements, rows, k);
        tensor(shape, largest.map(|(_, index)| index as i32).collect::<Vec<_>>())
    })
}
