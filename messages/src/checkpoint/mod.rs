//! Checkpoints in messages: their names, the contents of their files, and the start of a shard. Knows no
//! store.

mod file_spec;
mod name;
mod start;
mod worker_record;

pub use file_spec::{BLOCK_BYTES, FileSpec, Part, SavedTensorSpec};
pub use name::{CheckpointName, NameError};
pub use start::{SourceSpec, StartSpec};
pub use worker_record::WorkerRecord;
