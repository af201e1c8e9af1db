//! A description of the file into which a shard saves its part of a checkpoint. The ps task sends the
//! description to the chief, and the checkpoint's manifest contains it.

use serde::{Deserialize, Serialize};

use crate::id::{ShardId, SliceId, Version};

/// The size of a block, in bytes. Each block of a tensor has its own checksum, so a part of the tensor can
/// be read and checked without reading the rest.
pub const BLOCK_BYTES: usize = 4 << 20;

/// The file of a shard in a checkpoint, in the safetensors format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSpec {
    /// The file's name in the checkpoint's folder.
    pub name: String,
    /// The shard that wrote the file.
    pub shard: ShardId,
    /// The shard's version when it was saved. All tensors in the file have this version.
    pub version: Version,
    /// The size of the whole file, in bytes.
    pub bytes: u64,
    /// The tensors, in the order in which the file stores them.
    pub tensors: Vec<SavedTensorSpec>,
}

/// A tensor in the file: the value, the moving average or an optimizer slot of one slice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedTensorSpec {
    /// The tensor's name in the file.
    pub name: String,
    /// The slice to which the tensor belongs.
    pub slice: SliceId,
    /// Whether the tensor is the slice's value, its average or a slot.
    pub part: Part,
    /// The offset of the tensor's first byte in the file.
    pub offset: u64,
    /// The length of the tensor, in bytes.
    pub bytes: u64,
    /// The crc32c of each block of [`BLOCK_BYTES`] bytes, in order; the last block may be shorter.
    pub crc32c: Vec<u32>,
}

/// The part of a slice's state that a tensor contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The value of the slice.
    Value,
    /// The exponential moving average of the value.
    Average,
    /// The optimizer slot with this number, counted from 0.
    Slot(u32),
}
