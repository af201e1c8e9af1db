//! Parquet and Arrow files: rows of named fields, stored field by field. This module must not know what the
//! numbers or words stand for.

mod batches;
mod cells;
mod decoding;
mod ipc;
mod lists;
mod numbers;
mod reader;
mod row_groups;
mod selection;
#[cfg(test)]
mod tests;

pub(crate) use reader::TableFormat;
#[cfg(test)]
pub(crate) use tests::written;
