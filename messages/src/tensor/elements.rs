//! The elements of a tensor, row-major and without a shape.

use super::DType;

/// The elements of a tensor, in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub enum Elements {
    /// 32-bit floats.
    F32(Vec<f32>),
    /// 32-bit integers.
    I32(Vec<i32>),
    /// 64-bit integers.
    I64(Vec<i64>),
    /// 64-bit floats.
    F64(Vec<f64>),
    /// Truth values.
    Bool(Vec<bool>),
    /// Bytes, such as the pixels of an image.
    U8(Vec<u8>),
    /// Texts.
    Text(Vec<String>),
}

impl Elements {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(elements) => elements.len(),
            Self::I32(elements) => elements.len(),
            Self::I64(elements) => elements.len(),
            Self::F64(elements) => elements.len(),
            Self::Bool(elements) => elements.len(),
            Self::U8(elements) => elements.len(),
            Self::Text(elements) => elements.len(),
        }
    }

    /// Returns true if there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the type of the elements.
    pub const fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::I32(_) => DType::I32,
            Self::I64(_) => DType::I64,
            Self::F64(_) => DType::F64,
            Self::Bool(_) => DType::Bool,
            Self::U8(_) => DType::U8,
            Self::Text(_) => DType::Text,
        }
    }

    /// Returns `count` elements of the value 0, `false` or the empty text.
    ///
    /// # Panics
    /// If the memory does not suffice; the caller must have bounded `count`.
    pub fn zeros(dtype: DType, count: usize) -> Self {
        match dtype {
            DType::F32 => Self::F32(vec![0.0; count]),
            DType::I32 => Self::I32(vec![0; count]),
            DType::I64 => Self::I64(vec![0; count]),
            DType::F64 => Self::F64(vec![0.0; count]),
            DType::Bool => Self::Bool(vec![false; count]),
            DType::U8 => Self::U8(vec![0; count]),
            DType::Text => Self::Text(vec![String::new(); count]),
        }
    }
}

/// Converts vectors to elements.
macro_rules! from_vectors {
    ($($element:ty => $variant:ident)*) => {
        $(impl From<Vec<$element>> for Elements {
            fn from(elements: Vec<$element>) -> Self {
                Self::$variant(elements)
            }
        })*
    };
}

from_vectors! { f32 => F32 i32 => I32 i64 => I64 f64 => F64 bool => Bool u8 => U8 String => Text }

impl From<Vec<&str>> for Elements {
    fn from(elements: Vec<&str>) -> Self {
        Self::Text(elements.into_iter().map(str::to_owned).collect())
    }
}
