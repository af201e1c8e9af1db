//! Reads pieces of a checkpoint's tensors. Wanted property: (C2) bytes are returned only if they match the
//! checksums in the manifest.

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};

use super::file::FileError;
use super::manifest::Piece;
use super::store::Store;
use pushpull_messages::checkpoint::{BLOCK_BYTES, CheckpointName};

/// The number of blocks that are read concurrently.
const READS: usize = 4;

/// Reads a single piece of a tensor into `to`; see [`PieceReader::read`].
///
/// # Errors
/// The same as for [`PieceReader::read`].
///
/// # Panics
/// The same as for [`PieceReader::read`].
pub async fn read_piece(
    store: &Store,
    checkpoint: CheckpointName,
    piece: &Piece<'_>,
    to: &mut [u8],
) -> Result<(), FileError> {
    PieceReader::new(store, checkpoint).read(piece, to).await
}

/// A reader of a checkpoint's pieces. A checksum covers a whole block, so the reader fetches whole blocks.
/// It caches the last block, because the next piece often begins in the same block.
pub struct PieceReader<'a> {
    store: &'a Store,
    checkpoint: CheckpointName,
    last: Option<Block>,
}

/// A block of a tensor, after its checksum was found to be correct.
struct Block {
    file: String,
    /// The offset of the block's tensor in the file.
    tensor_offset: u64,
    /// The offset of the block in the tensor.
    start: u64,
    bytes: Bytes,
}

impl<'a> PieceReader<'a> {
    /// Makes a reader of a checkpoint.
    pub const fn new(store: &'a Store, checkpoint: CheckpointName) -> Self {
        Self { store, checkpoint, last: None }
    }

    /// Reads a piece of a tensor into `to`, which must be as long as the piece. Takes the memory of a few
    /// blocks.
    ///
    /// # Errors
    /// If the file is missing or truncated, or if a checksum differs from the manifest's. The content of `to`
    /// is then unspecified and must not be used.
    ///
    /// # Panics
    /// If `to` is not as long as the piece.
    pub async fn read(&mut self, piece: &Piece<'_>, to: &mut [u8]) -> Result<(), FileError> {
        let from = &piece.from;
        assert_eq!(to.len() as u64, from.end - from.start, "the buffer is as long as the piece");
        if from.is_empty() {
            return Ok(());
        }
        let block_bytes = BLOCK_BYTES as u64;
        let blocks = from.start / block_bytes..from.end.div_ceil(block_bytes);
        let of_tensor =
            |block: &Block| block.file == piece.file && block.tensor_offset == piece.tensor_offset;
        let last = self.last.take().filter(of_tensor);
        let reader = &*self;
        let reads = blocks.map(|block| {
            let start = block * block_bytes;
            let known = last.as_ref().filter(|last| last.start == start).map(|last| last.bytes.clone());
            async move {
                match known {
                    Some(bytes) => Ok((start, bytes)),
                    None => reader.block(piece, start).await.map(|bytes| (start, bytes)),
                }
            }
        });
        let mut reads = stream::iter(reads).buffered(READS);
        let mut last = None;
        while let Some((start, bytes)) = reads.try_next().await? {
            // Only a part of the first and the last block may be needed.
            let (first, end) = (start.max(from.start), (start + bytes.len() as u64).min(from.end));
            let source = &bytes[(first - start) as usize..(end - start) as usize];
            to[(first - from.start) as usize..(end - from.start) as usize].copy_from_slice(source);
            last = Some((start, bytes));
        }
        drop(reads);
        if from.end < piece.tensor_bytes {
            let (file, tensor_offset) = (piece.file.to_owned(), piece.tensor_offset);
            self.last = last.map(|(start, bytes)| Block { file, tensor_offset, start, bytes });
        }
        Ok(())
    }

    /// Reads and checks the block that begins at `start` in the piece's tensor.
    async fn block(&self, piece: &Piece<'_>, start: u64) -> Result<Bytes, FileError> {
        let name = self.checkpoint.file(piece.file);
        let end = (start + BLOCK_BYTES as u64).min(piece.tensor_bytes);
        let bytes = self.store.read(&name, piece.tensor_offset + start..piece.tensor_offset + end).await?;
        let expected = piece.crc32c[(start / BLOCK_BYTES as u64) as usize];
        let got = crc32c::crc32c(&bytes);
        if got == expected {
            return Ok(bytes);
        }
        let tensor = piece.tensor.to_owned();
        Err(FileError::Checksum { file: name, tensor, offset: start, expected, got })
    }
}
