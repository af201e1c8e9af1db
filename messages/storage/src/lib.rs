//! A checkpoint: what a ps writes and the chief commits, for another job to read. The store that it lies in, and the
//! layout of its files. When one is made, and which are kept, is decided elsewhere.
//!
//! A checkpoint is a folder of the store: a file of each shard, and a manifest, which is written last. Without that the
//! folder is what is left of a save that broke.

#![forbid(unsafe_code)]

mod catalog;
mod evaluation;
mod file;
#[cfg(test)]
#[path = "../../tests/fixtures/mod.rs"]
mod fixtures;
mod location;
mod manifest;
mod read;
pub mod record;
mod store;
#[cfg(test)]
mod tests;

pub use catalog::{Catalog, CheckpointState, missing_file, newest_first};
pub use evaluation::{EVALUATIONS, EvaluationRecord, RECORD_BYTES_MAX, RecordError};
pub use file::{FileError, FileWriter, FoundTensor, NewTensor, WrittenTensor, read_header, write_file};
pub use location::without_passwords;
pub use manifest::{FORMAT, Index, MANIFEST_BYTES_MAX, ManifestError, ManifestSpec, Piece, block_checksums};
pub use read::{PieceReader, read_piece};
pub use store::{Store, StoreError, Upload};
