//! CSV files: rows of delimited fields. This module must not depend on the meaning of the numbers or words.

mod field;
mod reader;
#[cfg(test)]
mod tests;

pub(super) use reader::{columns, read};
