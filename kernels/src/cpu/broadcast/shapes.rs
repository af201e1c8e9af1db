//! Two shapes that are broadcast against each other, and the iteration over the rows of the result. This
//! module must not depend on the computation.

use std::error::Error;
use std::fmt;
use std::ops::Range;

/// One of the two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The left-hand operand.
    A,
    /// The right-hand operand.
    B,
}

/// The error for shapes that cannot be broadcast against each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadShapes {
    /// The axis `from_last` has a different size in each shape, and both sizes differ from 1.
    Differ {
        /// The axis, counted from the last one, which is 0.
        from_last: usize,
        /// The sizes of this axis in the two shapes.
        sizes: [usize; 2],
    },
    /// A shape has more axes than [`Broadcast::MAX_RANK`]. The value is the number of its axes.
    Rank(usize),
    /// The result would have more elements than a slice can have.
    TooLarge,
}

impl fmt::Display for BadShapes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Differ { from_last, sizes: [a, b] } => {
                write!(
                    f,
                    "axis {from_last}, counted from the last, has sizes {a} and {b}, expected equal sizes or 1"
                )
            }
            Self::Rank(rank) => {
                write!(f, "a shape has {rank} axes, expected at most {}", Broadcast::MAX_RANK)
            }
            Self::TooLarge => write!(f, "the sizes are too large"),
        }
    }
}

impl Error for BadShapes {}

/// Two shapes that are broadcast against each other. They are aligned at the last axis. A shape that lacks
/// an axis, or has size 1 on it, is repeated along this axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broadcast {
    /// The axes of the result, the last axis first. Axes of size 1 are left out, and adjacent axes with the
    /// same `has` are merged. The axes beyond `rank` have size 1.
    pub(super) axes: [Axis; Self::MAX_RANK],
    pub(super) rank: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Axis {
    pub size: usize,
    /// For each operand, true if it has this axis, and false if it is repeated along the axis.
    pub has: [bool; 2],
}

impl Broadcast {
    /// The maximum number of axes of a shape.
    pub const MAX_RANK: usize = 8;

    /// Broadcasts the shapes `a` and `b`.
    ///
    /// # Errors
    /// If the shapes do not fit together.
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

    /// Returns the number of elements of the result.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.axes.iter().map(|axis| axis.size).product()
    }

    /// Returns the number of elements of the operand at `side`.
    pub fn operand_len(&self, side: Side) -> usize {
        self.axes.iter().filter(|axis| axis.has[side as usize]).map(|axis| axis.size).product()
    }

    /// Returns the axes of the result, the last one first: the size of each, and for each operand whether it
    /// has the axis. Axes of size 1 are left out, and neighbours that the same operands have are one axis.
    pub fn axes(&self) -> impl Iterator<Item = (usize, [bool; 2])> + '_ {
        self.axes[..self.rank].iter().map(|axis| (axis.size, axis.has))
    }

    /// Returns the size of the innermost axis and, for each operand, whether the operand has this axis.
    pub(in crate::cpu) fn inner(&self) -> (usize, [bool; 2]) {
        (self.axes[0].size, self.axes[0].has)
    }

    /// Calls `f` for each innermost row of the result, with the row's start in the result and in each
    /// operand.
    #[inline(always)]
    pub(in crate::cpu) fn for_each_row(&self, f: impl FnMut(usize, [usize; 2])) {
        self.for_each_row_of(0..self.len().checked_div(self.axes[0].size).unwrap_or(0), f);
    }

    /// Calls `f` as [`Broadcast::for_each_row`] does, but only for the rows whose indices are in `rows`.
    #[inline(always)]
    pub(super) fn for_each_row_of(&self, rows: Range<usize>, mut f: impl FnMut(usize, [usize; 2])) {
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
