//! A tensor of floats that is read in place.

/// A tensor of `f32` elements, row-major.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorView<'a> {
    /// The extent of each axis; empty for a scalar.
    pub shape: &'a [usize],
    /// The elements.
    pub values: &'a [f32],
}

impl<'a> TensorView<'a> {
    pub(crate) const fn new(shape: &'a [usize], values: &'a [f32]) -> Self {
        Self { shape, values }
    }

    /// Returns the elements at one index of the first axis, for example the scores of one example; `None` if
    /// the index is out of range or the tensor is a scalar.
    pub fn row(&self, index: usize) -> Option<&'a [f32]> {
        let &rows = self.shape.first()?;
        let elements = self.values.len().checked_div(rows)?;
        (index < rows).then(|| &self.values[index * elements..(index + 1) * elements])
    }
}
