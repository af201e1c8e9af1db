//! TFRecord files of `tf.train.Example`, read and written.
//! Knows nothing of what the features mean.

mod columns;
mod example;
mod records;
#[cfg(test)]
mod tests;
mod writer;

pub(super) use columns::{columns, read};
pub use example::Example;
pub use writer::TfRecordWriter;
