//! The description of a data set. This module must not depend on the contents of examples or of files.

use pushpull_messages::input::ColumnSpec;

/// A description of a data set: the number of its examples, and their columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The number of examples.
    pub examples: u64,
    /// The columns of each example.
    pub columns: Vec<ColumnSpec>,
}
