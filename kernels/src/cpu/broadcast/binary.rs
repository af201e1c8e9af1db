//! Functions of two numbers, element by element. This module must not know what the axes stand for.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::shapes::{Axis, Broadcast, Side};
use crate::cpu::dispatch::{dispatch, zip_map_loop};
use crate::cpu::shape::expect_len;
use crate::cpu::threads::{ELEMENTS_PER_TASK, Threads, share_rows};

/// A function of two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// `a + b`.
    Add,
    /// `a − b`.
    Sub,
    /// `a · b`.
    Mul,
    /// `a / b`.
    Div,
}

/// Computes `dst = f(a, b)`, with each operand repeated according to `shapes`. Long results are divided
/// among the threads.
///
/// # Panics
/// If a slice does not have the length that `shapes` requires.
#[track_caller]
pub fn binary(dst: &mut [f32], a: &[f32], b: &[f32], f: Binary, shapes: &Broadcast, threads: Threads) {
    expect_len("binary: dst", dst, shapes.len());
    expect_len("binary: a", a, shapes.operand_len(Side::A));
    expect_len("binary: b", b, shapes.operand_len(Side::B));
    match f {
        Binary::Add => map(dst, [a, b], shapes, threads, |a, b| a + b),
        Binary::Sub => map(dst, [a, b], shapes, threads, |a, b| a - b),
        Binary::Mul => map(dst, [a, b], shapes, threads, |a, b| a * b),
        Binary::Div => map(dst, [a, b], shapes, threads, |a, b| a / b),
    }
}

fn map(
    dst: &mut [f32],
    [a, b]: [&[f32]; 2],
    shapes: &Broadcast,
    threads: Threads,
    f: impl Fn(f32, f32) -> f32 + Sync,
) {
    let (len, tasks) = (dst.len(), threads.tasks(dst.len(), ELEMENTS_PER_TASK));
    let (inner, has) = shapes.inner();
    if shapes.rank > 1 {
        return share_rows([(dst, inner)], len.checked_div(inner).unwrap_or(0), tasks, &|[dst], rows| {
            dispatch(Map { dst, a, b, shapes, rows, f: &f });
        });
    }
    // There is only one row, so its elements are divided among the tasks.
    share_rows([(dst, 1)], len, tasks, &|[dst], part| {
        let of = |x: &'_ [f32], has: bool| if has { part.clone() } else { 0..x.len() };
        let (a, b) = (&a[of(a, has[0])], &b[of(b, has[1])]);
        let axis = Axis { size: part.len(), has };
        let mut shapes = *shapes;
        shapes.axes[0] = axis;
        dispatch(Map { dst, a, b, shapes: &shapes, rows: 0..1, f: &f });
    });
}

/// The computation of those rows of the result whose indices are in `rows`. Each row is as long as the
/// innermost axis.
struct Map<'a, F> {
    dst: &'a mut [f32],
    a: &'a [f32],
    b: &'a [f32],
    shapes: &'a Broadcast,
    rows: Range<usize>,
    f: F,
}

impl<F: Fn(f32, f32) -> f32> WithSimd for Map<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { dst, a, b, shapes, rows, f } = self;
        let (len, has) = shapes.inner();
        let first = rows.start * len;
        shapes.for_each_row_of(rows, |row, [at_a, at_b]| {
            let dst = &mut dst[row - first..][..len];
            match has {
                [true, true] => {
                    zip_map_loop([dst], [&a[at_a..at_a + len], &b[at_b..at_b + len]], |_, [a, b]| [f(a, b)]);
                }
                [true, false] => {
                    let b = b[at_b];
                    zip_map_loop([dst], [&a[at_a..at_a + len]], |_, [a]| [f(a, b)]);
                }
                _ => {
                    let a = a[at_a];
                    zip_map_loop([dst], [&b[at_b..at_b + len]], |_, [b]| [f(a, b)]);
                }
            }
        });
    }
}
