//! The types of the elements of tensors.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The type of a tensor's elements. The variables and data sets of training jobs have only elements of the
/// types `f32` and `i32`; sessions use all types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// 32-bit floating point, little endian on the wire.
    F32,
    /// 32-bit signed integer, little endian on the wire; for labels and ids.
    I32,
    /// 64-bit signed integer, little endian on the wire; for counters and positions.
    I64,
    /// 64-bit floating point, little endian on the wire.
    F64,
    /// A truth value: one byte on the wire, 0 or 1.
    Bool,
    /// 8-bit unsigned integer.
    U8,
    /// UTF-8 text. On the wire, each element is its length in bytes, as a little-endian `u32`, and its bytes.
    Text,
}

impl DType {
    /// All types.
    pub const ALL: [Self; 7] = [Self::F32, Self::I32, Self::I64, Self::F64, Self::Bool, Self::U8, Self::Text];

    /// Returns the size of one element in bytes; `None` for text, whose elements have different sizes.
    pub const fn bytes(self) -> Option<usize> {
        match self {
            Self::F32 | Self::I32 => Some(4),
            Self::I64 | Self::F64 => Some(8),
            Self::Bool | Self::U8 => Some(1),
            Self::Text => None,
        }
    }

    /// Returns true if the elements are numbers, and so neither truth values nor text.
    pub const fn is_number(self) -> bool {
        !matches!(self, Self::Bool | Self::Text)
    }

    /// Returns true if a training job can have inputs of this type.
    pub const fn is_of_examples(self) -> bool {
        matches!(self, Self::F32 | Self::I32)
    }

    /// Returns the name of the type, as job files and errors use it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::F64 => "f64",
            Self::Bool => "bool",
            Self::U8 => "u8",
            Self::Text => "text",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_has_the_same_name_in_errors_and_job_files() {
        for dtype in DType::ALL {
            assert_eq!(serde_json::to_value(dtype).unwrap(), dtype.to_string());
        }
    }
}
