//! Files in the safetensors format, which Python reads with the package `safetensors`. Files are written and
//! read in parts, so that a large file is never in memory twice. The caller decides which tensors a file
//! contains.

use std::collections::HashMap;

use bytes::Bytes;
use safetensors::tensor::{Dtype, Metadata, SafeTensorError, TensorInfo};

use super::manifest::ManifestError;
use super::store::{Store, StoreError, Upload};
use pushpull_messages::checkpoint::BLOCK_BYTES;
use pushpull_messages::job::told;
use pushpull_messages::tensor::ALIGNMENT;
use pushpull_messages::tensor::Shape;

/// The largest size of a file's header in bytes, as the format defines it.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// The size, in bytes, of the field that precedes the header and holds the header's length.
const LENGTH_BYTES: u64 = 8;
/// The smallest size of an upload's part, in bytes. No store requires larger parts, and larger parts would
/// only take more memory.
const PART_BYTES: usize = 8 << 20;

/// A tensor of f32 elements that is to be written.
#[derive(Clone, Debug)]
pub struct NewTensor {
    /// The tensor's name in the file.
    pub name: String,
    /// The extent of each axis.
    pub shape: Shape,
    /// The elements, little endian, as consecutive pieces. The pieces are shared, not copied.
    pub bytes: Vec<Bytes>,
}

/// A tensor that has been written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenTensor {
    /// The tensor's offset in the file, in bytes.
    pub offset: u64,
    /// The tensor's length in bytes.
    pub bytes: u64,
    /// The crc32c of each block of [`BLOCK_BYTES`] bytes.
    pub crc32c: Vec<u32>,
}

/// A tensor in the header of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundTensor {
    /// The tensor's name in the file.
    pub name: String,
    /// The extent of each axis.
    pub shape: Shape,
    /// The element type, such as `F32`.
    pub dtype: String,
    /// The tensor's offset in the file, in bytes.
    pub offset: u64,
    /// The tensor's length in bytes.
    pub bytes: u64,
}

/// An error in reading a file of a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The manifest is invalid.
    #[error("{file}: {error}")]
    Manifest {
        /// The path of the manifest.
        file: String,
        /// The fault in the manifest.
        error: ManifestError,
    },
    /// The file is not in the safetensors format.
    #[error("{file} is not a safetensors file: {reason}")]
    Format {
        /// The path of the file.
        file: String,
        /// The reason.
        reason: String,
    },
    /// The bytes have changed since they were written.
    #[error(
        "{file}: block at byte {offset} of tensor '{tensor}' has checksum {got:08x}, expected {expected:08x}"
    )]
    Checksum {
        /// The path of the file.
        file: String,
        /// The tensor's name.
        tensor: String,
        /// The offset of the changed block in the tensor, in bytes.
        offset: u64,
        /// The checksum in the manifest.
        expected: u32,
        /// The checksum of the bytes read.
        got: u32,
    },
}

/// Returns the beginning of a file: the length of the header, and the header. The header lists the tensors
/// in the order in which the file contains them.
fn header(
    tensors: &[(String, Shape)],
    metadata: HashMap<String, String>,
) -> Result<Vec<u8>, SafeTensorError> {
    let mut end = 0;
    let infos = tensors.iter().map(|(name, shape)| {
        let start = end;
        end += shape.elements() * 4;
        (name.clone(), TensorInfo { dtype: Dtype::F32, shape: shape.0.clone(), data_offsets: (start, end) })
    });
    let metadata = Metadata::new((!metadata.is_empty()).then_some(metadata), infos.collect())?;
    let mut text = serde_json::to_vec(&metadata).expect("plain data encodes");
    // The header is padded with spaces, so that the tensors begin on a cache line.
    let length = (LENGTH_BYTES as usize + text.len()).next_multiple_of(ALIGNMENT) - LENGTH_BYTES as usize;
    text.resize(length, b' ');
    let mut bytes = (length as u64).to_le_bytes().to_vec();
    bytes.extend(text);
    Ok(bytes)
}

/// A writer of a file of f32 tensors. The tensors are written one after the other, each in any number of
/// pieces. The file appears in the store when it is finished.
pub struct FileWriter<'a> {
    upload: Upload<'a>,
    part: Vec<Bytes>,
    part_bytes: usize,
    /// The length of each tensor in bytes.
    lengths: Vec<u64>,
    /// The tensors that have been written completely.
    written: Vec<WrittenTensor>,
    /// The offset of the current tensor in the file.
    offset: u64,
    /// The number of bytes of the current tensor that have been written.
    filled: u64,
    sums: Checksums,
}

impl<'a> FileWriter<'a> {
    /// Begins a file that will contain `tensors`, each given by its name and shape, in this order.
    ///
    /// # Errors
    /// If the store fails.
    ///
    /// # Panics
    /// If two tensors have the same name.
    pub async fn begin(
        store: &'a Store,
        name: &str,
        tensors: &[(String, Shape)],
        metadata: HashMap<String, String>,
    ) -> Result<Self, StoreError> {
        let header = Bytes::from(header(tensors, metadata).expect("each tensor has its own name"));
        let mut writer = Self {
            upload: store.upload(name).await?,
            part_bytes: header.len(),
            offset: header.len() as u64,
            part: vec![header],
            lengths: tensors.iter().map(|(_, shape)| shape.elements() as u64 * 4).collect(),
            written: Vec::with_capacity(tensors.len()),
            filled: 0,
            sums: Checksums::default(),
        };
        writer.close_full();
        Ok(writer)
    }

    /// Returns the number of bytes of the current tensor that are still to be written; `None` after the last
    /// tensor.
    fn left(&self) -> Option<u64> {
        self.lengths.get(self.written.len()).map(|length| length - self.filled)
    }

    fn close_full(&mut self) {
        while self.left() == Some(0) {
            let crc32c = std::mem::take(&mut self.sums).finish();
            self.written.push(WrittenTensor { offset: self.offset, bytes: self.filled, crc32c });
            self.offset += std::mem::take(&mut self.filled);
        }
    }

    /// Writes the next bytes of the tensors, little endian. The bytes are shared, not copied, and may go
    /// beyond the end of the current tensor.
    ///
    /// # Errors
    /// If the store fails.
    ///
    /// # Panics
    /// If there are more bytes than the remaining tensors need.
    pub async fn write(&mut self, mut bytes: Bytes) -> Result<(), StoreError> {
        while !bytes.is_empty() {
            let left = self.left().expect("no more bytes than the tensors have");
            let some = bytes.split_to(bytes.len().min(PART_BYTES).min(left.try_into().unwrap_or(PART_BYTES)));
            self.sums.update(&some);
            self.filled += some.len() as u64;
            self.part_bytes += some.len();
            self.part.push(some);
            self.close_full();
            if self.part_bytes >= PART_BYTES {
                self.part_bytes = 0;
                self.upload.part(std::mem::take(&mut self.part)).await?;
            }
        }
        Ok(())
    }

    /// Completes the file, which then appears in the store and is durable. Returns the tensors with their
    /// offsets and checksums, and the file's length in bytes.
    ///
    /// # Errors
    /// If the store fails; the file then does not appear.
    ///
    /// # Panics
    /// If bytes of a tensor are missing.
    pub async fn finish(mut self) -> Result<(Vec<WrittenTensor>, u64), StoreError> {
        assert_eq!(self.left(), None, "every tensor has the bytes of its shape");
        if self.part_bytes > 0 {
            self.upload.part(self.part).await?;
        }
        self.upload.finish().await?;
        Ok((self.written, self.offset))
    }

    /// Discards the file.
    pub async fn abort(self) {
        self.upload.abort().await;
    }
}

/// Writes a file, which appears in the store when it is complete and durable. Returns the tensors with their
/// offsets and checksums, and the file's length in bytes.
///
/// Takes no memory besides that of the tensors and of the header. Releases each tensor as soon as it is
/// written.
///
/// # Errors
/// If the store fails; the file then does not appear.
///
/// # Panics
/// If the bytes of a tensor do not match its shape, or if two tensors have the same name.
pub async fn write_file(
    store: &Store,
    name: &str,
    tensors: Vec<NewTensor>,
    metadata: HashMap<String, String>,
) -> Result<(Vec<WrittenTensor>, u64), StoreError> {
    for NewTensor { name, shape, bytes } in &tensors {
        let length: usize = bytes.iter().map(Bytes::len).sum();
        assert_eq!(length, shape.elements() * 4, "the bytes of '{name}' are those of its shape");
    }
    let shapes: Vec<_> = tensors.iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone())).collect();
    let mut writer = FileWriter::begin(store, name, &shapes, metadata).await?;
    for piece in tensors.into_iter().flat_map(|tensor| tensor.bytes) {
        if let Err(error) = writer.write(piece).await {
            writer.abort().await;
            return Err(error);
        }
    }
    writer.finish().await
}

/// The checksums of a tensor's blocks, computed while its bytes arrive in pieces of any length.
#[derive(Default)]
struct Checksums {
    done: Vec<u32>,
    open: u32,
    filled: usize,
}

impl Checksums {
    fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (some, rest) = bytes.split_at(bytes.len().min(BLOCK_BYTES - self.filled));
            self.open = crc32c::crc32c_append(self.open, some);
            self.filled += some.len();
            if self.filled == BLOCK_BYTES {
                self.done.push(std::mem::take(&mut self.open));
                self.filled = 0;
            }
            bytes = rest;
        }
    }

    fn finish(mut self) -> Vec<u32> {
        if self.filled > 0 {
            self.done.push(self.open);
        }
        self.done
    }
}

/// Reads the header of a file and returns its tensors in the order of the file.
///
/// # Errors
/// If the file is missing, truncated, or not in the safetensors format.
pub async fn read_header(store: &Store, name: &str) -> Result<Vec<FoundTensor>, FileError> {
    Ok(read_header_with_metadata(store, name).await?.0)
}

/// Reads the header of a file. Returns its tensors in the order of the file, and its metadata: text values
/// by key.
///
/// # Errors
/// The same as those of [`read_header`].
pub async fn read_header_with_metadata(
    store: &Store,
    name: &str,
) -> Result<(Vec<FoundTensor>, HashMap<String, String>), FileError> {
    let format = |reason: String| FileError::Format { file: name.to_owned(), reason };
    let size = store.size(name).await?;
    if size < LENGTH_BYTES {
        return Err(format(format!("it has {size} bytes, expected at least {LENGTH_BYTES}")));
    }
    let length = store.read(name, 0..LENGTH_BYTES).await?;
    let length = u64::from_le_bytes(length[..].try_into().expect("the store returns the bytes requested"));
    if length > HEADER_BYTES_MAX || LENGTH_BYTES + length > size {
        return Err(format(format!("its header would have {length} bytes, but the file has {size}")));
    }
    let first = LENGTH_BYTES + length;
    let text = store.read(name, LENGTH_BYTES..first).await?;
    let metadata: Metadata = serde_json::from_slice(&text).map_err(|error| format(told(&error)))?;
    let texts = metadata.metadata().clone().unwrap_or_default();
    let tensors = metadata.tensors();
    let last = tensors.values().map(|info| info.data_offsets.1 as u64).max();
    // This check comes before the additions below, because an offset may have any value and a sum could
    // overflow.
    if let Some(last) = last.filter(|&last| last != size - first) {
        return Err(format(format!(
            "its tensors have {last} bytes, but the file has {} after the header",
            size - first
        )));
    }
    let mut found: Vec<FoundTensor> = tensors
        .into_iter()
        .map(|(name, info)| FoundTensor {
            name,
            shape: Shape(info.shape.clone()),
            dtype: format!("{:?}", info.dtype),
            offset: first + info.data_offsets.0 as u64,
            bytes: (info.data_offsets.1 - info.data_offsets.0) as u64,
        })
        .collect();
    found.sort_by_key(|tensor| tensor.offset);
    Ok((found, texts))
}
