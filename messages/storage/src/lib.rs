//! Checkpoints: the store, the layout of the files, and the catalog. A ps task writes the files, the chief
//! commits them, and another job reads them. This crate does not decide when a checkpoint is saved or how
//! long it is retained.
//!
//! A checkpoint is a folder of the store. It has a file for each shard, and a manifest that is written last.
//! A folder without a manifest belongs to a save that failed or is still in progress.

#![forbid(unsafe_code)]

mod blocking;
mod catalog;
mod evaluation;
mod file;
#[cfg(test)]
#[path = "../../tests/fixtures/mod.rs"]
mod fixtures;
mod location;
mod lock;
mod manifest;
mod memory;
mod read;
pub mod record;
mod root;
mod store;
mod stores;
#[cfg(test)]
mod tests;

pub use catalog::{Catalog, CheckpointState, missing_file, newest_first};
pub use evaluation::{EVALUATIONS, EvaluationRecord, RECORD_BYTES_MAX, RecordError};
pub use file::{
    FileError, FileWriter, FoundTensor, NewTensor, WrittenTensor, read_header, read_header_with_metadata,
    write_file,
};
pub use location::without_passwords;
pub use lock::StoreLock;
pub use manifest::{FORMAT, Index, MANIFEST_BYTES_MAX, ManifestError, ManifestSpec, Piece, block_checksums};
pub use memory::{FileCallError, FileTasks, FilesFull, MemoryFiles, MemoryStore, Uploader};
pub use read::{PieceReader, read_piece};
pub use store::{Store, StoreError, Upload};
pub use stores::Stores;
