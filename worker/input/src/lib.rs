//! The input of a worker: examples in memory, this worker's part of them, and the order in which they are
//! grouped into batches. This module must not depend on graphs, devices or variables; opens no connections.

#![forbid(unsafe_code)]

mod babble;
mod batch;
mod cifar10;
mod color_images;
mod csv;
mod data_share;
mod dataset;
mod description;
mod digits;
mod error;
mod file_share;
mod idx;
mod in_order;
mod linear;
mod mapped;
mod prefetch;
mod random;
mod record_error;
mod rows;
mod sampler;
mod source;
mod stages;
mod storage;
#[cfg(test)]
mod tests;
mod tf_record;
mod unpacked;
mod windows;

pub use batch::Batch;
pub use data_share::DataShare;
pub use dataset::Dataset;
pub use description::Description;
pub use digits::Digits;
pub use error::InputError;
pub use file_share::FileShare;
pub use idx::IdxFile;
pub use in_order::{InOrder, in_order};
pub use mapped::Mapped;
pub use prefetch::{Prefetch, READY_BATCHES, READY_BATCHES_MAX, READY_BYTES_MAX, check_ready_bytes};
pub use pushpull_messages::input::Column;
pub use random::SplitMix64;
pub use record_error::RecordError;
pub use rows::HELD_BYTES_MAX;
pub use sampler::{BATCH_EXAMPLES_MAX, ORDER_EXAMPLES_MAX, Pick, Position, Sampler};
pub use source::{describe, in_directory, input_in_directory, load, load_images};
pub use storage::Storage;
pub use tf_record::{Example, TfRecordWriter};
pub use unpacked::UNPACKED_BYTES_MAX;
