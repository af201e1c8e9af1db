//! Two shapes broadcast against each other, and the walk over the rows of the result. It must not know what
//! is computed.

use std::error::Error;
use std::fmt;
use std::ops::Range;

/// One of the two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The left one.
    A,
    /// The right one.
    B,
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
    pub(super) axes: [Axis; Self::MAX_RANK],
    pub(super) rank: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Axis {
    pub size: usize,
    /// Whether each operand has this axis. Else it repeats.
    pub has: [bool; 2],
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

    /// Returns the number of elements of the result.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.axes.iter().map(|axis| axis.size).product()
    }

    /// Returns the number of elements of an operand.
    pub fn operand_len(&self, side: Side) -> usize {
        self.axes.iter().filter(|axis| axis.has[side as usize]).map(|axis| axis.size).product()
    }

    /// Returns the size of the innermost axis, and whether each operand has it.
    pub(in crate::cpu) fn inner(&self) -> (usize, [bool; 2]) {
        (self.axes[0].size, self.axes[0].has)
    }

    /// Calls `f` for each innermost row of the result, with where it starts there and in each operand.
    #[inline(always)]
    pub(in crate::cpu) fn for_each_row(&self, f: impl FnMut(usize, [usize; 2])) {
        self.for_each_row_of(0..self.len().checked_div(self.axes[0].size).unwrap_or(0), f);
    }

    /// [`Broadcast::for_each_row`] of some of the rows.
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
