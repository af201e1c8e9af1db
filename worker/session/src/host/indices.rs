//! Positions of elements in tensors: broadcasts, and the rows along an axis. Shapes are those that inference
//! has checked.

use pushpull_messages::tensor::Shape;

/// Returns the shape of a broadcast of these shapes: aligned at the last axis, each extent is the largest.
pub(super) fn broadcast(shapes: &[&Shape]) -> Shape {
    let rank = shapes.iter().map(|shape| shape.rank()).max().unwrap_or(0);
    let extent = |axis: usize| {
        let extents =
            shapes.iter().map(|shape| (axis + shape.rank()).checked_sub(rank).map_or(1, |own| shape.0[own]));
        extents.fold(1, |all, extent| if extent == 1 { all } else { extent })
    };
    Shape((0..rank).map(extent).collect())
}

/// The position, for each element of a tensor, of the element of a smaller tensor that a broadcast repeats
/// there. The positions are computed one by one: a list of them could take many times the memory of the
/// elements.
#[derive(Clone)]
pub(super) struct Positions {
    extents: Vec<usize>,
    strides: Vec<usize>,
    index: Vec<usize>,
    position: usize,
    left: usize,
}

/// Returns, for each element of a tensor of the shape `within`, the position of the element of a tensor of
/// the shape `of` that a broadcast repeats there.
pub(super) fn positions(of: &Shape, within: &Shape) -> Positions {
    let left = within.elements();
    let (extents, strides) = if of == within {
        (vec![left], vec![1])
    } else if of.elements() == 1 {
        (vec![left], vec![0])
    } else {
        let offset = within.rank() - of.rank();
        let mut strides = vec![0; within.rank()];
        let mut stride = 1;
        for axis in (0..of.rank()).rev() {
            strides[offset + axis] = if of.0[axis] == 1 { 0 } else { stride };
            stride *= of.0[axis];
        }
        (within.0.clone(), strides)
    };
    Positions { index: vec![0; extents.len()], extents, strides, position: 0, left }
}

impl Iterator for Positions {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let position = self.position;
        for axis in (0..self.extents.len()).rev() {
            self.index[axis] += 1;
            self.position += self.strides[axis];
            if self.index[axis] < self.extents[axis] {
                break;
            }
            self.position -= self.strides[axis] * self.index[axis];
            self.index[axis] = 0;
        }
        Some(position)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Positions {}

/// The rows of a tensor along one axis: the positions of the elements of row (i, j) begin at
/// `i · length · inner + j`, and are `inner` apart.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub outer: usize,
    pub length: usize,
    pub inner: usize,
}

impl Rows {
    pub fn along(shape: &Shape, axis: usize) -> Self {
        let outer = shape.0[..axis].iter().product();
        let inner = shape.0[axis + 1..].iter().product();
        Self { outer, length: shape.0[axis], inner }
    }

    /// Returns the positions of each row.
    pub fn each(self) -> impl Iterator<Item = impl Iterator<Item = usize> + Clone> {
        let Self { outer, length, inner } = self;
        (0..outer * inner).map(move |row| {
            let first = row / inner * length * inner + row % inner;
            (0..length).map(move |element| first + element * inner)
        })
    }
}
