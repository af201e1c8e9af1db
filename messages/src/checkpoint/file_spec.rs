//! The contents of a shard's file, as the ps reports them to the chief and the manifest lists them.

use serde::{Deserialize, Serialize};

use crate::id::{ShardId, SliceId, Version};

/// The bytes of a block. Each block of a tensor has a checksum, so that a part of the tensor can be read and
/// checked.
pub const BLOCK_BYTES: usize = 4 << 20;

/// The file of a shard, in the safetensors format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSpec {
    /// The name in the checkpoint's folder.
    pub name: String,
    /// The shard that wrote the file.
    pub shard: ShardId,
    /// The version of all tensors.
    pub version: Version,
    /// The bytes of the whole file.
    pub bytes: u64,
    /// The tensors, in the order of the file.
    pub tensors: Vec<SavedTensorSpec>,
}

/// A tensor of a file: a slice's value, average or slot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedTensorSpec {
    /// The name in the file.
    pub name: String,
    /// The slice of the placement.
    pub slice: SliceId,
    /// The part of the slice.
    pub part: Part,
    /// The offset in the file.
    pub offset: u64,
    /// The length in bytes.
    pub bytes: u64,
    /// The crc32c of each block of [`BLOCK_BYTES`] bytes; the last block may be shorter.
    pub crc32c: Vec<u32>,
}

/// The part of a slice that a tensor holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The value.
    Value,
    /// The moving average.
    Average,
    /// The optimizer's slot of this number.
    Slot(u32),
}
