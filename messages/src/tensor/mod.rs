//! Tensors: their shapes, the types of their elements, and the elements of those that sessions use. The
//! values of training jobs are not here: they stay in the buffers of transport and engine.

mod bytes;
mod dtype;
mod elements;
mod error;
#[cfg(test)]
mod tests;
mod value;

pub use dtype::DType;
pub use elements::Elements;
pub use error::TensorError;
pub use value::Tensor;

use std::fmt;

use serde::{Deserialize, Serialize};

/// The alignment, in bytes, of the start of every buffer and of every segment within a payload.
pub const ALIGNMENT: usize = 64;

/// The maximum number of axes of a tensor.
pub const RANK_MAX: usize = 8;

/// The shape of a row-major tensor: the extent of each axis, outermost first. A scalar has no axes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shape(pub Vec<usize>);

impl Shape {
    /// Returns the shape of a scalar: no axes and one element.
    pub const fn scalar() -> Self {
        Self(Vec::new())
    }

    /// Returns the number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of elements, or `None` if it overflows a `usize`.
    pub fn checked_elements(&self) -> Option<usize> {
        self.0.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent))
    }

    /// Returns the number of elements.
    ///
    /// # Panics
    /// If the number of elements overflows a `usize`, which is impossible for a validated shape.
    pub fn elements(&self) -> usize {
        self.checked_elements().expect("a validated shape's element count fits in usize")
    }

    /// Returns this shape with one more axis in front, such as the axis of the batch.
    #[must_use]
    pub fn with_leading(&self, extent: usize) -> Self {
        let mut extents = Vec::with_capacity(self.0.len() + 1);
        extents.push(extent);
        extents.extend_from_slice(&self.0);
        Self(extents)
    }
}

impl From<Vec<usize>> for Shape {
    fn from(extents: Vec<usize>) -> Self {
        Self(extents)
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(extents: [usize; N]) -> Self {
        Self(extents.to_vec())
    }
}

/// The maximum number of axes that are displayed. A bound is needed because a shape that has been received
/// may have any number of axes.
const AXES_SHOWN_MAX: usize = 16;

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (axis, extent) in self.0.iter().take(AXES_SHOWN_MAX).enumerate() {
            if axis > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{extent}")?;
        }
        match self.rank() {
            0..=AXES_SHOWN_MAX => f.write_str("]"),
            rank => write!(f, ", .. of {rank} axes]"),
        }
    }
}

/// The shape and the element type of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorSpec {
    /// The extents of the axes.
    pub shape: Shape,
    /// The element type.
    pub dtype: DType,
}

impl TensorSpec {
    /// Returns the spec of a tensor of 32-bit floats.
    pub fn f32(shape: impl Into<Shape>) -> Self {
        Self { shape: shape.into(), dtype: DType::F32 }
    }

    /// Returns the spec of a tensor of this type.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> Self {
        Self { shape: shape.into(), dtype }
    }

    /// Returns the spec of a tensor of 32-bit integers.
    pub fn i32(shape: impl Into<Shape>) -> Self {
        Self { shape: shape.into(), dtype: DType::I32 }
    }
}

impl fmt::Display for TensorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}
