//! What a worker trains on: examples in memory, which part of them is this worker's, and in which order they come
//! as batches. Knows no graph, no device and no variable, and talks to nobody.

mod batch;
mod data_share;
mod dataset;
mod digits;
mod error;
mod idx;
mod in_order;
mod prefetch;
mod random;
mod sampler;
mod source;

pub use batch::Batch;
pub use data_share::DataShare;
pub use dataset::Dataset;
pub use digits::Digits;
pub use error::InputError;
pub use idx::{IdxFile, UNPACKED_BYTES_MAX};
pub use in_order::{InOrder, in_order};
pub use prefetch::{Prefetch, READY_BATCHES, READY_BATCHES_MAX};
pub use sampler::{BATCH_EXAMPLES_MAX, Position, Sampler};
pub use source::{Description, describe, in_directory, load};
