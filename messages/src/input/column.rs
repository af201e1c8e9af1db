//! Columns of a data set. A column is a named tensor that every example has; this file defines the spec of a
//! column, and the elements of a column for a batch of examples.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::tensor::{DType, TensorSpec};

/// The maximum number of columns that an error lists.
const LISTED_MAX: usize = 8;

/// The spec of a column: a named tensor that every example has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColumnSpec {
    /// The name of the column. A graph reads the column through its input of the same name.
    pub name: String,
    /// The shape and type of one example, without the batch axis.
    pub example: TensorSpec,
}

impl fmt::Display for ColumnSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' {}", self.name, self.example)
    }
}

impl ColumnSpec {
    /// Makes the spec of a column.
    pub fn new(name: impl Into<String>, example: TensorSpec) -> Self {
        Self { name: name.into(), example }
    }

    /// Lists columns for an error message: the first 8, and how many more there are.
    pub fn list(columns: &[Self]) -> String {
        let words: Vec<String> = columns.iter().take(LISTED_MAX).map(Self::to_string).collect();
        let words = words.join(", ");
        match columns.len().saturating_sub(LISTED_MAX) {
            0 => words,
            more => format!("{words} and {more} more"),
        }
    }
}

/// The elements of a column for a batch of examples. They are row-major with the axes `[examples,
/// ..example]`, and have the type that the column's spec states.
#[derive(Clone, Debug, PartialEq)]
pub enum Column {
    /// The elements of a column of floats.
    F32(Vec<f32>),
    /// The elements of a column of integers, such as ids, classes or tokens.
    I32(Vec<i32>),
}

impl Column {
    /// Returns the type of the elements.
    pub const fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::I32(_) => DType::I32,
        }
    }

    /// Returns the elements, or `None` if they are integers.
    pub fn f32(&self) -> Option<&[f32]> {
        match self {
            Self::F32(elements) => Some(elements),
            Self::I32(_) => None,
        }
    }

    /// Returns the elements, or `None` if they are floats.
    pub fn i32(&self) -> Option<&[i32]> {
        match self {
            Self::I32(elements) => Some(elements),
            Self::F32(_) => None,
        }
    }

    /// Changes the type and the number of elements. If the type stays the same, the existing values remain
    /// and new elements are 0; memory that is large enough is reused. If the type changes, all elements are
    /// 0.
    ///
    /// # Panics
    /// If the type is neither `f32` nor `i32`. A data set refuses columns of such a type.
    pub fn resize(&mut self, dtype: DType, elements: usize) {
        match (self, dtype) {
            (Self::F32(old), DType::F32) => old.resize(elements, 0.0),
            (Self::I32(old), DType::I32) => old.resize(elements, 0),
            (other, DType::F32) => *other = Self::F32(vec![0.0; elements]),
            (other, DType::I32) => *other = Self::I32(vec![0; elements]),
            (_, other) => panic!("a column of {other}, expected f32 or i32"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_ends_with_the_number_of_the_others() {
        let columns: Vec<ColumnSpec> = (0..1 << 12)
            .map(|number| ColumnSpec { name: format!("c{number}"), example: TensorSpec::f32([]) })
            .collect();
        assert_eq!(ColumnSpec::list(&columns[..2]), "'c0' f32[], 'c1' f32[]");
        assert!(ColumnSpec::list(&columns[..LISTED_MAX]).ends_with("'c7' f32[]"));
        let all = ColumnSpec::list(&columns);
        assert!(all.starts_with("'c0' f32[], ") && all.ends_with("'c7' f32[] and 4088 more"), "{all}");
    }
}
