//! The description of a data set. Independent of its examples and of its files.

use pushpull_messages::input::ColumnSpec;

/// A description of a data set: the number and the columns of its examples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The number of examples.
    pub examples: u64,
    /// The columns of each example.
    pub columns: Vec<ColumnSpec>,
}
