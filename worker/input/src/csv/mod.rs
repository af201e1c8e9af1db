//! Text files of rows and fields.
//! Knows nothing of what the numbers and words mean.

mod field;
mod reader;
#[cfg(test)]
mod tests;

pub(super) use reader::{columns, read};
