//! What the file of one shard holds, as the ps tells the chief and the manifest lists it.

use serde::{Deserialize, Serialize};

use crate::id::{ShardId, SliceId, Version};

/// Every tensor bears a checksum for each run of so many bytes, so that a part of it can be read and checked.
pub const BLOCK_BYTES: usize = 4 << 20;

/// The file of one shard, in the format safetensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSpec {
    /// Within the checkpoint's folder.
    pub name: String,
    /// Who wrote it.
    pub shard: ShardId,
    /// Of all its slices.
    pub version: Version,
    /// The whole file's.
    pub bytes: u64,
    /// All of them, in the order of the file.
    pub tensors: Vec<SavedTensorSpec>,
}

/// One tensor of a file: a slice's value, or something beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedTensorSpec {
    /// In the file.
    pub name: String,
    /// Of the placement.
    pub slice: SliceId,
    /// What of that slice.
    pub part: Part,
    /// Where it begins in the file.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
    /// crc32c of each run of [`BLOCK_BYTES`] bytes; the last may be shorter.
    pub crc32c: Vec<u32>,
}

/// What of a slice a tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The value itself.
    Value,
    /// Its moving average.
    Average,
    /// The optimizer's state of that number beside it.
    Slot(u32),
}
