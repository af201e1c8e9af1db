//! One column of a data set: the name, shape and type of a tensor that every example has.
//! Knows neither the numbers nor the format that they come in.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::tensor::TensorSpec;

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
