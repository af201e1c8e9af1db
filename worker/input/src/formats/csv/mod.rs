//! CSV files: rows of delimited fields. This module must not know what the numbers or words stand for.

mod field;
mod reader;
#[cfg(test)]
mod tests;

pub(crate) use reader::CsvFormat;
