//! What messages say about checkpoints: their names, the contents of their files, and how a shard starts from
//! one. Reads and writes no files.

mod file_spec;
mod name;
mod start;
mod worker_record;

pub use file_spec::{BLOCK_BYTES, FileSpec, Part, SavedTensorSpec};
pub use name::{CheckpointName, NameError};
pub use start::{SourceSpec, StartSpec};
pub use worker_record::WorkerRecord;
