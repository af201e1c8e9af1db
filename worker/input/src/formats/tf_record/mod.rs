//! Reads and writes TFRecord files of `tf.train.Example`. This module must not know what the features stand
//! for.

mod columns;
mod example;
mod records;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use columns::TfRecordFormat;
pub use example::Example;
pub use writer::TfRecordWriter;
