//! One column of a data set: the name, shape and type of a tensor that every example has, and its numbers in a batch.
//! Knows no file format, and nothing of what the numbers are used for.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::tensor::{DType, TensorSpec};

/// Most columns that an error lists.
const LISTED_MAX: usize = 8;

/// One named tensor of every example.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColumnSpec {
    /// What a graph's input asks for.
    pub name: String,
    /// What one example has, without the batch.
    pub example: TensorSpec,
}

impl fmt::Display for ColumnSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' {}", self.name, self.example)
    }
}

impl ColumnSpec {
    /// Several of them in words, for an error that says what there is: the first few, and how many more.
    pub fn list(columns: &[Self]) -> String {
        let words: Vec<String> = columns.iter().take(LISTED_MAX).map(Self::to_string).collect();
        let words = words.join(", ");
        match columns.len().saturating_sub(LISTED_MAX) {
            0 => words,
            more => format!("{words} and {more} more"),
        }
    }
}

/// The numbers of one column in a batch, row-major `[examples, ..example]`, of the type that the column's spec says.
#[derive(Clone, Debug, PartialEq)]
pub enum Column {
    /// Floats.
    F32(Vec<f32>),
    /// Ids, classes, tokens.
    I32(Vec<i32>),
}

impl Column {
    /// Returns the type of its elements.
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

    /// Makes this a column of `elements` elements of type `dtype`. Reuses the memory where type and capacity allow it;
    /// elements that were there before keep their values.
    pub fn resize(&mut self, dtype: DType, elements: usize) {
        match (self, dtype) {
            (Self::F32(old), DType::F32) => old.resize(elements, 0.0),
            (Self::I32(old), DType::I32) => old.resize(elements, 0),
            (other, DType::F32) => *other = Self::F32(vec![0.0; elements]),
            (other, DType::I32) => *other = Self::I32(vec![0; elements]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_many_says_how_many_more_there_are() {
        let columns: Vec<ColumnSpec> = (0..1 << 12)
            .map(|number| ColumnSpec { name: format!("c{number}"), example: TensorSpec::f32([]) })
            .collect();
        assert_eq!(ColumnSpec::list(&columns[..2]), "'c0' f32[], 'c1' f32[]");
        assert!(ColumnSpec::list(&columns[..LISTED_MAX]).ends_with("'c7' f32[]"));
        let all = ColumnSpec::list(&columns);
        assert!(all.starts_with("'c0' f32[], ") && all.ends_with("'c7' f32[] and 4088 more"), "{all}");
    }
}
