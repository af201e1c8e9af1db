//! A checkpoint: what a ps writes and the chief commits, for another job to read. Its layout as data, and the store that
//! it lies in. When one is made, and which are kept, is decided elsewhere.
//!
//! A checkpoint is a folder of the store: a file of each shard, and a manifest, which is written last. Without that the
//! folder is what is left of a save that broke.

mod catalog;
mod evaluation;
mod file;
mod location;
mod manifest;
mod name;
mod read;
mod start;
mod store;
#[cfg(test)]
pub(crate) mod tests;

pub use catalog::{Catalog, CheckpointState, missing_file, newest_first};
pub use evaluation::{EVALUATIONS, EvaluationRecord, RECORD_BYTES_MAX, RecordError};
pub use file::{FileError, FileWriter, FoundTensor, NewTensor, WrittenTensor, read_header, write_file};
pub use location::without_passwords;
pub use manifest::{
    BLOCK_BYTES, FORMAT, FileSpec, Index, MANIFEST_BYTES_MAX, ManifestError, ManifestSpec, Part, Piece,
    SavedTensorSpec, WorkerRecord, block_checksums,
};
pub use name::{CheckpointName, NameError};
pub use read::{PieceReader, read_piece};
pub use start::{SourceSpec, StartSpec};
pub use store::{Store, StoreError, Upload};
