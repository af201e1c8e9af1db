//! A checkpoint as tasks speak of it: its name, what its files hold, and what a shard starts with. Knows no store.

mod file_spec;
mod name;
mod start;
mod worker_record;

pub use file_spec::{BLOCK_BYTES, FileSpec, Part, SavedTensorSpec};
pub use name::{CheckpointName, NameError};
pub use start::{SourceSpec, StartSpec};
pub use worker_record::WorkerRecord;
