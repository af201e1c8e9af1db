//! Arithmetic of two tensors by numpy's broadcasting rules, and sums and maxima over axes, which are the way
//! back. They must not know what the axes stand for.

use std::error::Error;
use std::fmt;
use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::dispatch::{dispatch, zip_map_loop};
use super::reduce::sum;
use super::shape::expect_len;
use super::threads::{ELEMENTS_PER_TASK, Threads, share_rows};

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

/// One of the two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The left one.
    A,
    /// The right one.
    B,
}

/// How to reduce many numbers to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// Their sum divided by their number.
    Mean,
    /// The largest; a NaN if there is one.
    Max,
}

/// Shapes that do not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadShapes {
    /// This axis, counted from the last, has different sizes, neither of them 1.
    Differ {
        /// Axis, from 0 for the last.
        from_last: usize,
        /// Its sizes.
        sizes: [usize; 2],
    },
    /// More axes than [`Broadcast::MAX_RANK`].
    Rank(usize),
    /// The number of elements overflows.
    TooLarge,
}

impl fmt::Display for BadShapes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Differ { from_last, sizes: [a, b] } => {
                write!(f, "axis {from_last} from the last has sizes {a} and {b}")
            }
            Self::Rank(rank) => write!(f, "{rank} axes are more than {}", Broadcast::MAX_RANK),
            Self::TooLarge => write!(f, "the sizes overflow"),
        }
    }
}

impl Error for BadShapes {}

/// Two shapes broadcast against each other: aligned at the last axis, an axis of size 1 (or none) repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broadcast {
    /// The axes of the result, the last first, neighbours that repeat alike taken together; 1 beyond `rank`.
    axes: [Axis; Self::MAX_RANK],
    rank: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axis {
    size: usize,
    /// Whether each operand has this axis. Else it repeats.
    has: [bool; 2],
}

impl Broadcast {
    /// The most axes that a shape may have.
    pub const MAX_RANK: usize = 8;

    /// Broadcasts the shapes `a` and `b`.
    ///
    /// # Errors
    /// If they do not fit together.
    pub fn new(a: &[usize], b: &[usize]) -> Result<Self, BadShapes> {
        let rank = a.len().max(b.len());
        if rank > Self::MAX_RANK {
            return Err(BadShapes::Rank(rank));
        }
        let mut this = Self { axes: [Axis { size: 1, has: [true; 2] }; Self::MAX_RANK], rank: 0 };
        let mut len = 1usize;
        for from_last in 0..rank {
            let size = |shape: &[usize]| shape.iter().rev().nth(from_last).copied().unwrap_or(1);
            let sizes @ [a, b] = [size(a), size(b)];
            if a != b && a != 1 && b != 1 {
                return Err(BadShapes::Differ { from_last, sizes });
            }
            let axis = Axis { size: if a == 1 { b } else { a }, has: [a != 1, b != 1] };
            len = len
                .checked_mul(axis.size.max(1))
                .filter(|&len| len <= isize::MAX as usize / size_of::<f32>())
                .ok_or(BadShapes::TooLarge)?;
            match this.rank.checked_sub(1).map(|last| &mut this.axes[last]) {
                _ if axis.size == 1 => {}
                Some(last) if last.has == axis.has => last.size *= axis.size,
                _ => {
                    this.axes[this.rank] = axis;
                    this.rank += 1;
                }
            }
        }
        Ok(this)
    }

    /// Number of elements of the result.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.axes.iter().map(|axis| axis.size).product()
    }

    /// Number of elements of an operand.
    pub fn operand_len(&self, side: Side) -> usize {
        self.axes.iter().filter(|axis| axis.has[side as usize]).map(|axis| axis.size).product()
    }

    /// Size of the innermost axis, and whether each operand has it.
    pub(super) fn inner(&self) -> (usize, [bool; 2]) {
        (self.axes[0].size, self.axes[0].has)
    }

    /// Calls `f` for each innermost row of the result, with where it starts there and in each operand.
    #[inline(always)]
    pub(super) fn for_each_row(&self, f: impl FnMut(usize, [usize; 2])) {
        self.for_each_row_of(0..self.len().checked_div(self.axes[0].size).unwrap_or(0), f);
    }

    /// [`Broadcast::for_each_row`] of some of the rows.
    #[inline(always)]
    fn for_each_row_of(&self, rows: Range<usize>, mut f: impl FnMut(usize, [usize; 2])) {
        if self.len() == 0 {
            return;
        }
        let mut strides = [[0; 2]; Self::MAX_RANK];
        let mut step = [1; 2];
        for (axis, stride) in self.axes.iter().zip(&mut strides) {
            for side in 0..2 {
                if axis.has[side] {
                    stride[side] = step[side];
                    step[side] *= axis.size;
                }
            }
        }
        let mut index = [0; Self::MAX_RANK];
        let mut starts = [0; 2];
        let mut rest = rows.start;
        for axis in 1..self.rank {
            index[axis] = rest % self.axes[axis].size;
            rest /= self.axes[axis].size;
            for side in 0..2 {
                starts[side] += strides[axis][side] * index[axis];
            }
        }
        for row in rows {
            f(row * self.axes[0].size, starts);
            for axis in 1..self.rank {
                index[axis] += 1;
                let wraps = index[axis] == self.axes[axis].size;
                for side in 0..2 {
                    starts[side] += strides[axis][side];
                    if wraps {
                        starts[side] -= strides[axis][side] * index[axis];
                    }
                }
                if !wraps {
                    break;
                }
                index[axis] = 0;
            }
        }
    }
}

/// `dst = f(a, b)`, each repeated as `shapes` says. Threads share long results.
///
/// # Panics
/// If the slices are not as long as `shapes` says.
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
    // A single row, to be cut itself.
    share_rows([(dst, 1)], len, tasks, &|[dst], part| {
        let of = |x: &'_ [f32], has: bool| if has { part.clone() } else { 0..x.len() };
        let (a, b) = (&a[of(a, has[0])], &b[of(b, has[1])]);
        let axis = Axis { size: part.len(), has };
        let mut shapes = *shapes;
        shapes.axes[0] = axis;
        dispatch(Map { dst, a, b, shapes: &shapes, rows: 0..1, f: &f });
    });
}

/// The rows `rows`, each an innermost axis long.
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

/// The gradient by a broadcast operand: `dst`, with the shape of that `side`, is `x`, with that of the result,
/// reduced over the axes along which the operand is repeated.
///
/// With the shape `[2, 1]` broadcast to `[2, 3]` it reduces rows, so it serves for reductions over any axes. A
/// sum over last axes is as [`sum`](super::sum()) per row, one over others adds rows in order. Sums over
/// nothing are 0, means NaN, maxima −∞.
///
/// # Panics
/// If the slices are not as long as `shapes` says.
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

/// The larger; a NaN if either is one.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::testing::{assert_close, floats};

    /// Shapes that broadcast, and the shape of the result.
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

    /// The index in a tensor of `shape` of element `index` of the result.
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
}
