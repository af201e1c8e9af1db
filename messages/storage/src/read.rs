//! Reading parts of a checkpoint's tensors: whatever comes is checked before anybody sees it (C2).

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};

use super::file::FileError;
use super::manifest::Piece;
use super::store::Store;
use pushpull_messages::checkpoint::{BLOCK_BYTES, CheckpointName};

/// Blocks that are read at a time.
const READS: usize = 4;

/// Reads a piece of a tensor into `to`, which is as long as the piece: as [`PieceReader::read`], for a single one.
///
/// # Errors
/// As there.
///
/// # Panics
/// As there.
pub async fn read_piece(
    store: &Store,
    checkpoint: CheckpointName,
    piece: &Piece<'_>,
    to: &mut [u8],
) -> Result<(), FileError> {
    PieceReader::new(store, checkpoint).read(piece, to).await
}

/// Reads pieces of a checkpoint. What is checked is a whole block: the last one is kept, for the next piece may lie in
/// it, too.
pub struct PieceReader<'a> {
    store: &'a Store,
    checkpoint: CheckpointName,
    last: Option<Block>,
}

/// A block that has been checked.
struct Block {
    file: String,
    /// Where its tensor begins in the file.
    tensor_offset: u64,
    /// Where it begins in the tensor.
    start: u64,
    bytes: Bytes,
}

impl<'a> PieceReader<'a> {
    /// Of that checkpoint.
    pub const fn new(store: &'a Store, checkpoint: CheckpointName) -> Self {
        Self { store, checkpoint, last: None }
    }

    /// Reads a piece of a tensor into `to`, which is as long as the piece.
    ///
    /// Memory: a few blocks.
    ///
    /// # Errors
    /// Where the file is missing or cut, or a checksum is not that of the manifest; what is in `to` is not to be used then.
    ///
    /// # Panics
    /// Where `to` is of another length.
    pub async fn read(&mut self, piece: &Piece<'_>, to: &mut [u8]) -> Result<(), FileError> {
        let from = &piece.from;
        assert_eq!(to.len() as u64, from.end - from.start, "room for a piece");
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
            // Of the first and the last block only a part may be wanted.
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

    /// The block that begins there in the piece's tensor.
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
