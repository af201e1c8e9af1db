//! CSV files: rows of delimited fields.
//! Does not know what the numbers and words mean.

mod field;
mod reader;
#[cfg(test)]
mod tests;

pub(super) use reader::{columns, read};
