//! The input of a worker: examples in memory, this worker's part of them, and the order in which they are
//! grouped into batches. This crate must not depend on graphs, devices or variables. It opens no connections
//! except to the stores of data.

#![forbid(unsafe_code)]

mod batch;
mod data_share;
mod dataset;
mod datasets;
mod description;
mod error;
mod file_share;
mod files;
mod formats;
mod generated;
mod in_order;
mod mapped;
mod object;
mod pipeline;
mod prefetch;
mod random;
mod sampler;
mod source;
mod stages;
mod stream;
mod test_set;
#[cfg(test)]
mod tests;
mod threads;
mod unpacked;
mod zstd;

pub use batch::Batch;
pub use data_share::DataShare;
pub use dataset::{
    Cache, Dataset, Filter, FromFn, HELD_BYTES_MAX, InMemory, Interleave, IntoExample, Map, Reader, Row,
    Rows, Storage, Zip, from_fn,
};
pub use datasets::Datasets;
pub use description::Description;
pub use error::InputError;
pub use file_share::FileShare;
pub use files::SkippedRecords;
pub use formats::{Example, IdxFile, RecordError, TableError, TfRecordWriter};
pub use generated::Digits;
pub use in_order::{InOrder, in_order};
pub use mapped::Mapped;
pub use pipeline::{Pipeline, PipelineWorker, STREAM_BYTES_MIN};
pub use prefetch::{Prefetch, READY_BATCHES, READY_BATCHES_MAX, READY_BYTES_MAX, check_ready_bytes};
pub use pushpull_messages::input::Column;
pub use random::SplitMix64;
pub use sampler::{BATCH_EXAMPLES_MAX, ORDER_EXAMPLES_MAX, Pick, Position, Sampler};
pub use source::{Reading, describe, in_directory, input_in_directory, load, load_from, load_images, open};
pub use test_set::{TEST_BYTES_MAX, TestBatches, TestSet};
pub use unpacked::UNPACKED_BYTES_MAX;
