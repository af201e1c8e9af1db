//! Files in the format safetensors: where each tensor lies, and how a file is written and read by parts, so that a large
//! one is never in memory twice. Python opens them with the package of that name.

use std::collections::HashMap;

use bytes::Bytes;
use safetensors::tensor::{Dtype, Metadata, SafeTensorError, TensorInfo};

use super::manifest::ManifestError;
use super::store::{Store, StoreError, Upload};
use pushpull_messages::checkpoint::BLOCK_BYTES;
use pushpull_messages::job::told;
use pushpull_messages::tensor::ALIGNMENT;
use pushpull_messages::tensor::Shape;

/// Most bytes of a file's header: as the format has it.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Of the header's length, in front of it.
const LENGTH_BYTES: u64 = 8;
/// What one part of a file has at least: no store wants less, and more would only take memory.
const PART_BYTES: usize = 8 << 20;

/// A tensor of f32 that is to be written.
#[derive(Clone, Debug)]
pub struct NewTensor {
    /// In the file.
    pub name: String,
    /// Its extents.
    pub shape: Shape,
    /// Its elements, little endian, in pieces that lie one behind the other: shared, not copied.
    pub bytes: Vec<Bytes>,
}

/// A tensor that has been written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenTensor {
    /// Where it begins in the file.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
    /// crc32c of each run of [`BLOCK_BYTES`].
    pub crc32c: Vec<u32>,
}

/// A tensor of a file, as its header has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundTensor {
    /// In the file.
    pub name: String,
    /// Its extents.
    pub shape: Shape,
    /// Such as `F32`.
    pub dtype: String,
    /// Where it begins in the file.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
}

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The store says no.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It is a manifest that cannot be used.
    #[error("{file}: {error}")]
    Manifest {
        /// Which one.
        file: String,
        /// Why not.
        error: ManifestError,
    },
    /// It is not in the format.
    #[error("{file} is no safetensors file: {reason}")]
    Format {
        /// Which one.
        file: String,
        /// Why not.
        reason: String,
    },
    /// Its bytes are not those that were written.
    #[error(
        "{file}: the checksum of tensor '{tensor}' from byte {offset} of it on is {got:08x}, and should be {expected:08x}"
    )]
    Checksum {
        /// Which file.
        file: String,
        /// Which tensor.
        tensor: String,
        /// From where in the tensor.
        offset: u64,
        /// By the manifest.
        expected: u32,
        /// Of what is there.
        got: u32,
    },
}

/// What the file begins with; the tensors follow in their order.
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
    // Spaces up to where tensors may begin on a cache line.
    let length = (LENGTH_BYTES as usize + text.len()).next_multiple_of(ALIGNMENT) - LENGTH_BYTES as usize;
    text.resize(length, b' ');
    let mut bytes = (length as u64).to_le_bytes().to_vec();
    bytes.extend(text);
    Ok(bytes)
}

/// A file of f32 tensors that is written one tensor behind the other, each in pieces. It appears when it is finished.
pub struct FileWriter<'a> {
    upload: Upload<'a>,
    part: Vec<Bytes>,
    part_bytes: usize,
    /// How long each tensor is.
    lengths: Vec<u64>,
    /// Those that are complete.
    written: Vec<WrittenTensor>,
    /// Where the next one begins, or the one that is being written.
    offset: u64,
    /// What of that there is.
    filled: u64,
    sums: Checksums,
}

impl<'a> FileWriter<'a> {
    /// Begins a file of these tensors, by name and shape, in their order.
    ///
    /// # Errors
    /// Where the store says no.
    ///
    /// # Panics
    /// Where two have the same name.
    pub async fn begin(
        store: &'a Store,
        name: &str,
        tensors: &[(String, Shape)],
        metadata: HashMap<String, String>,
    ) -> Result<Self, StoreError> {
        let header = Bytes::from(header(tensors, metadata).expect("tensors have names of their own"));
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

    /// What of the current tensor is still to come.
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

    /// The next bytes, little endian, of the tensors one behind the other: shared, not copied.
    ///
    /// # Errors
    /// Where the store says no.
    ///
    /// # Panics
    /// Where the tensors have fewer.
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

    /// The file appears, durable. Gives where each tensor lies, and the file's length.
    ///
    /// # Errors
    /// Where the store says no; then there is no such file.
    ///
    /// # Panics
    /// Where bytes of a tensor are missing.
    pub async fn finish(mut self) -> Result<(Vec<WrittenTensor>, u64), StoreError> {
        assert_eq!(self.left(), None, "every tensor has the bytes of its shape");
        if self.part_bytes > 0 {
            self.upload.part(self.part).await?;
        }
        self.upload.finish().await?;
        Ok((self.written, self.offset))
    }

    /// It never was.
    pub async fn abort(self) {
        self.upload.abort().await;
    }
}

/// Writes a file, which appears when it is whole and durable. Gives where each tensor lies, and the file's length.
///
/// Memory: what the tensors have already, and a header. Each tensor is let go of as soon as it is written.
///
/// # Errors
/// Where the store says no; then there is no such file.
///
/// # Panics
/// Where a tensor's bytes are not those of its shape, or two have the same name.
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

/// Checksums of runs of bytes, whatever the pieces are in which these come.
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

/// What a file holds, by its header, in the order of the file.
///
/// # Errors
/// Where it is missing, cut, or in no such format.
pub async fn read_header(store: &Store, name: &str) -> Result<Vec<FoundTensor>, FileError> {
    let format = |reason: String| FileError::Format { file: name.to_owned(), reason };
    let size = store.size(name).await?;
    if size < LENGTH_BYTES {
        return Err(format(format!("it has {size} bytes")));
    }
    let length = store.read(name, 0..LENGTH_BYTES).await?;
    let length = u64::from_le_bytes(length[..].try_into().expect("as long as was asked for"));
    if length > HEADER_BYTES_MAX || LENGTH_BYTES + length > size {
        return Err(format(format!("its header would have {length} bytes, and it has {size}")));
    }
    let first = LENGTH_BYTES + length;
    let text = store.read(name, LENGTH_BYTES..first).await?;
    let metadata: Metadata = serde_json::from_slice(&text).map_err(|error| format(told(&error)))?;
    let tensors = metadata.tensors();
    let last = tensors.values().map(|info| info.data_offsets.1 as u64).max();
    // Before anything is added to an offset, which may be any number.
    if let Some(last) = last.filter(|&last| last != size - first) {
        return Err(format(format!("its tensors have {last} bytes, and {} are there", size - first)));
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
    Ok(found)
}
