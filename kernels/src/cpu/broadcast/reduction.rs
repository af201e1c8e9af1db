//! Sums, means and maxima over the axes along which an operand is repeated. This module must not know what
//! the axes stand for.

use pulp::{Simd, WithSimd};

use super::shapes::{Broadcast, Side};
use crate::cpu::dispatch::{dispatch, zip_map_loop};
use crate::cpu::reduce::sum;
use crate::cpu::shape::expect_len;

/// A function that reduces many numbers to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// The sum.
    Sum,
    /// The sum divided by the number of elements.
    Mean,
    /// The largest element, or NaN if any element is NaN.
    Max,
}

/// Reduces `x` over the axes along which the operand at `side` is repeated, and writes the results to `dst`.
/// `x` has the shape of the broadcast result, `dst` the shape of the operand. If `x` is the gradient with
/// respect to the broadcast result, [`Reduction::Sum`] gives the gradient with respect to the operand.
///
/// Any axes can be reduced. For example, if the operand has the shape `[2, 1]` and the broadcast result has
/// the shape `[2, 3]`, each row is reduced to one element. For a sum over the last axes, the function `sum`
/// adds the elements of each row; for a sum over other axes, the rows are added in order. If there are no
/// elements, the sum is 0, the mean is NaN and the maximum is −∞.
///
/// # Panics
/// If a slice does not have the length that `shapes` requires.
#[track_caller]
pub fn reduce(dst: &mut [f32], x: &[f32], reduction: Reduction, shapes: &Broadcast, side: Side) {
    expect_len("reduce: dst", dst, shapes.operand_len(side));
    expect_len("reduce: x", x, shapes.len());
    let (len, has) = shapes.inner();
    let along = has[side as usize];
    match reduction {
        Reduction::Sum | Reduction::Mean => {
            dst.fill(0.0);
            if along {
                dispatch(AddRows { dst, x, shapes, side });
            } else {
                shapes.for_each_row(|row, starts| dst[starts[side as usize]] += sum(&x[row..row + len]));
            }
            if reduction == Reduction::Mean {
                let count = (x.len() as f64 / dst.len() as f64) as f32;
                dst.iter_mut().for_each(|dst| *dst /= count);
            }
        }
        Reduction::Max => {
            dst.fill(f32::NEG_INFINITY);
            shapes.for_each_row(|row, starts| {
                let start = starts[side as usize];
                let x = &x[row..row + len];
                if along {
                    dst[start..start + len].iter_mut().zip(x).for_each(|(dst, &x)| *dst = larger(*dst, x));
                } else {
                    dst[start] = x.iter().copied().fold(dst[start], larger);
                }
            });
        }
    }
}

/// Returns the larger number, or NaN if either number is NaN.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a || b.is_nan() { b } else { a }
}

struct AddRows<'a> {
    dst: &'a mut [f32],
    x: &'a [f32],
    shapes: &'a Broadcast,
    side: Side,
}

impl WithSimd for AddRows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dst, x, shapes, side } = self;
        let (len, _) = shapes.inner();
        shapes.for_each_row(|row, starts| {
            let start = starts[side as usize];
            zip_map_loop([&mut dst[start..start + len]], [&x[row..row + len]], |[sum], [x]| [sum + x]);
        });
    }
}
