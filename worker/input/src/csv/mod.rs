//! CSV files: rows of delimited fields. Independent of the meaning of the numbers and words.

mod field;
mod reader;
#[cfg(test)]
mod tests;

pub(super) use reader::{columns, read};
