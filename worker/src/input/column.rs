//! One column of a batch: the same named tensor of every example, one after the other.
//! Knows neither its name nor where the numbers came from.

use pushpull_messages::tensor::DType;

/// Row-major `[examples, ..example]`, of the type that the column's spec says.
#[derive(Clone, Debug, PartialEq)]
pub enum Column {
    /// Floats.
    F32(Vec<f32>),
    /// Ids, classes, tokens.
    I32(Vec<i32>),
}

impl Column {
    /// The type of its elements.
    pub const fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::I32(_) => DType::I32,
        }
    }

    /// The elements, where they are floats.
    pub fn f32(&self) -> Option<&[f32]> {
        match self {
            Self::F32(elements) => Some(elements),
            Self::I32(_) => None,
        }
    }

    /// The elements, where they are integers.
    pub fn i32(&self) -> Option<&[i32]> {
        match self {
            Self::I32(elements) => Some(elements),
            Self::F32(_) => None,
        }
    }

    /// Makes it one of so many elements, in the same memory where type and room allow it.
    pub(super) fn resize(&mut self, dtype: DType, elements: usize) {
        match (self, dtype) {
            (Self::F32(old), DType::F32) => old.resize(elements, 0.0),
            (Self::I32(old), DType::I32) => old.resize(elements, 0),
            (other, DType::F32) => *other = Self::F32(vec![0.0; elements]),
            (other, DType::I32) => *other = Self::I32(vec![0; elements]),
        }
    }
}
