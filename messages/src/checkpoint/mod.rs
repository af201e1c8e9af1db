//! The parts of messages that describe checkpoints: their names, the contents of their files, and how a
//! shard starts from a checkpoint. This module does not read or write files.

mod file_spec;
mod level;
mod name;
mod start;
mod worker_record;

pub use file_spec::{BLOCK_BYTES, FileSpec, Part, SavedTensorSpec};
pub use level::{Level, MEMORY, is_file_name};
pub use name::{CheckpointName, NameError};
pub use start::{SourceSpec, StartSpec};
pub use worker_record::WorkerRecord;
