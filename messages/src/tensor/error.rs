//! The errors of tensors whose elements do not fit their shape or their bytes.

use super::{DType, RANK_MAX, Shape, TensorSpec};

/// An error of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// The shape has too many axes.
    #[error("a tensor has the shape {shape}, expected at most {RANK_MAX} axes")]
    Rank {
        /// The shape.
        shape: Shape,
    },
    /// The number of elements does not fit the shape.
    #[error("a tensor of the shape {shape} has {got} elements, expected as many as the shape has places")]
    Count {
        /// The shape.
        shape: Shape,
        /// The number of elements found.
        got: usize,
    },
    /// The number of bytes does not fit the spec.
    #[error("a tensor {spec} has {got} bytes, expected {expected}")]
    Bytes {
        /// The spec.
        spec: TensorSpec,
        /// The number of bytes that the spec needs.
        expected: String,
        /// The number of bytes found.
        got: usize,
    },
    /// The bytes of one element are not valid.
    #[error("element {position} of a tensor of {dtype} is not valid: expected {expected}")]
    Element {
        /// The position of the element.
        position: usize,
        /// The type of the elements.
        dtype: DType,
        /// A description of valid elements.
        expected: &'static str,
    },
}
