//! Reads the rows of Arrow IPC, one message after the other. A file is a stream between magic bytes and a
//! footer, so a file is read like a stream. This module must not depend on what the fields stand for.
//!
//! Wanted properties: (A) the rows are those of the file, in order; (B) at most one message is in memory,
//! besides the dictionaries and the rows returned; (C) a damaged or truncated file causes an error, and
//! takes no more memory than the limits below.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::{RecordBatchDecoder, read_dictionary};
use arrow_ipc::{Message, MessageHeader, MetadataVersion, root_as_message};
use arrow_schema::{ArrowError, Fields, SchemaRef};

use super::batches::Batches;
use super::decoding::{bad, decoding, unreadable};
use super::selection::{Selection, Wanted};
use crate::formats::table_kind::TableKind;
use crate::unpacked::Unpacked;
use crate::{InputError, TableError};

/// The first eight bytes of a file. The first six of them are also the last six bytes of the file.
const MAGIC: &[u8; 8] = b"ARROW1\0\0";
/// The first bytes of a message.
const CONTINUATION: [u8; 4] = [0xff; 4];
/// The maximum number of zeros between [`MAGIC`] and the first message of a file.
const PADDING_BYTES_MAX: usize = 64;
/// The maximum number of bytes of a message's metadata.
const METADATA_BYTES_MAX: u64 = 64 << 20;
/// The maximum number of bytes of a record batch, both packed and unpacked. Also the maximum number of bytes
/// of all dictionaries together.
const BATCH_BYTES_MAX: u64 = 1 << 30;
/// More than the ratio of unpacked to packed bytes that LZ4 and zstd can reach: a block of zstd has at least
/// 4 bytes, and at most 128 KiB when it is unpacked (RFC 8878).
const UNPACKED_RATIO_MAX: u64 = 1 << 16;

/// The names of the parts of a file, for errors.
const HEAD: &str = "the head of a message";
const METADATA: &str = "the metadata of a message";
const SCHEMA: &str = "the schema";
const BATCH: &str = "a record batch";
const DICTIONARY: &str = "a dictionary";
const FOOTER: &str = "the footer";

/// A file or a stream of Arrow IPC whose schema has been read.
pub(super) struct ArrowFile {
    messages: Messages,
    schema: SchemaRef,
    /// For each field, the id of its dictionary.
    dictionaries: Vec<Option<i64>>,
}

impl ArrowFile {
    /// Opens a file or an object, and reads its schema.
    ///
    /// # Errors
    /// If it does not exist, cannot be read, or is not in the Arrow IPC format.
    pub(super) fn open(path: &Path) -> Result<Self, InputError> {
        let input = Unpacked::open(path)?;
        let file = input.path().to_path_buf();
        Self::begin(Messages { input, is_file: false, any: false, ended: false })
            .map_err(|problem| InputError::Table { file, problem: Box::new(problem) })
    }

    fn begin(mut messages: Messages) -> Result<Self, TableError> {
        let Some(head) = messages.next()? else { return Err(TableError::Truncated { part: SCHEMA }) };
        let (schema, dictionaries) = decoding(SCHEMA, || {
            let message = head.message()?;
            let schema = message.header_as_schema();
            let schema = schema.ok_or_else(|| ArrowError::IpcError("it is not the first message".into()))?;
            if !schema.endianness().equals_to_target_endianness() {
                return Err(ArrowError::IpcError("the numbers are big-endian".into()));
            }
            let dictionary = |field: arrow_ipc::Field<'_>| Some(field.dictionary()?.id());
            let dictionaries = schema.fields().into_iter().flatten().map(dictionary).collect();
            Ok((try_fb_to_schema(schema)?, dictionaries))
        })?;
        messages.discard(head.body, SCHEMA)?;
        Ok(Self { messages, schema: Arc::new(schema), dictionaries })
    }

    /// Returns the path of the file that was opened.
    pub(super) fn path(&self) -> &Path {
        self.messages.input.path()
    }

    /// Starts to read the wanted fields. Returns the rows and, for each wanted field, its position in a row.
    ///
    /// # Errors
    /// If the file lacks a field.
    pub(super) fn batches(self, wanted: &[Wanted]) -> Result<(Box<dyn Batches>, Vec<usize>), TableError> {
        let names: Vec<&str> = self.schema.fields().iter().map(|field| field.name().as_str()).collect();
        let Selection { fields: selected, positions, .. } = Selection::new(wanted, &names)?;
        let fields = selected.iter().map(|&field| Arc::clone(&self.schema.fields()[field])).collect();
        let used = selected.iter().filter_map(|&field| Some((self.dictionaries[field]?, 0)));
        let batches = IpcBatches {
            dictionary_bytes: used.collect(),
            messages: self.messages,
            schema: self.schema,
            selected,
            fields,
            dictionaries: HashMap::new(),
            pending: None,
        };
        Ok((Box::new(batches), positions))
    }
}

/// The messages of a file or a stream.
struct Messages {
    input: Unpacked,
    /// True if the messages are followed by a footer.
    is_file: bool,
    /// True if a message has been read.
    any: bool,
    /// True if the mark that ends the stream has been read.
    ended: bool,
}

/// The metadata of a message.
struct Head {
    metadata: Vec<u8>,
    /// The number of bytes that follow the metadata.
    body: u64,
}

impl Head {
    fn message(&self) -> Result<Message<'_>, ArrowError> {
        root_as_message(&self.metadata).map_err(|error| ArrowError::IpcError(error.to_string()))
    }
}

impl Messages {
    /// Reads the metadata of the next message. Returns `None` at the mark that ends the stream; it is an
    /// error if the mark is missing.
    fn next(&mut self) -> Result<Option<Head>, TableError> {
        if self.ended {
            return Ok(None);
        }
        let mut word = [0; 4];
        match self.input.fill(&mut word).map_err(|error| unreadable(HEAD, error))? {
            4 => {}
            0 if self.any => return Err(TableError::NoEndMark),
            _ => return Err(TableError::Truncated { part: HEAD }),
        }
        if !self.any && word == MAGIC[..4] {
            let mut rest = [0; 4];
            self.fill(&mut rest, HEAD)?;
            if rest != MAGIC[4..] {
                return Err(not_arrow(&[word, rest].concat()));
            }
            self.is_file = true;
            // Some writers put zeros before the first message to align it.
            for _ in 0..=PADDING_BYTES_MAX / 4 {
                self.fill(&mut word, HEAD)?;
                if word != [0; 4] {
                    break;
                }
            }
        }
        if word != CONTINUATION {
            return Err(if self.any { bad(HEAD, "it has no marker") } else { not_arrow(&word) });
        }
        self.any = true;
        self.fill(&mut word, HEAD)?;
        let bytes = i32::from_le_bytes(word);
        if bytes == 0 {
            self.check_end()?;
            self.ended = true;
            return Ok(None);
        }
        let bytes = u64::try_from(bytes).map_err(|_| bad(HEAD, "its length is negative"))?;
        if bytes > METADATA_BYTES_MAX {
            return Err(TableError::TooLarge { part: METADATA, bytes, max: METADATA_BYTES_MAX });
        }
        let metadata = self.read(bytes, METADATA)?;
        let mut head = Head { metadata, body: 0 };
        let body = decoding(METADATA, || Ok::<_, ArrowError>(head.message()?.bodyLength()))?;
        head.body = u64::try_from(body).map_err(|_| bad(METADATA, "its length is negative"))?;
        Ok(Some(head))
    }

    /// Checks that a stream ends here, and that a file has a footer.
    fn check_end(&mut self) -> Result<(), TableError> {
        let (mut last, mut chunk, mut total) = (Vec::new(), [0; 1 << 12], 0);
        loop {
            let got = self.input.fill(&mut chunk).map_err(|error| unreadable(FOOTER, error))?;
            total += got as u64;
            last.extend_from_slice(&chunk[..got]);
            last.drain(..last.len().saturating_sub(6));
            if got < chunk.len() {
                break;
            }
        }
        match (self.is_file, total) {
            (true, _) if last == MAGIC[..6] => Ok(()),
            (true, _) => Err(TableError::Truncated { part: FOOTER }),
            (false, 0) => Ok(()),
            (false, _) => Err(bad("the end of the stream", format!("{total} bytes follow it"))),
        }
    }

    /// Reads `bytes` bytes. Allocates memory only as data arrives, because `bytes` may be wrong in a damaged
    /// file.
    fn read(&mut self, bytes: u64, part: &'static str) -> Result<Vec<u8>, TableError> {
        let (mut data, bytes) = (Vec::new(), bytes as usize);
        match self.input.append(bytes, &mut data).map_err(|error| unreadable(part, error))? == bytes {
            true => Ok(data),
            false => Err(TableError::Truncated { part }),
        }
    }

    fn fill(&mut self, buffer: &mut [u8], part: &'static str) -> Result<(), TableError> {
        match self.input.fill(buffer).map_err(|error| unreadable(part, error))? == buffer.len() {
            true => Ok(()),
            false => Err(TableError::Truncated { part }),
        }
    }

    fn discard(&mut self, bytes: u64, part: &'static str) -> Result<(), TableError> {
        let bytes = usize::try_from(bytes).map_err(|error| bad(part, error))?;
        match self.input.discard(bytes).map_err(|error| unreadable(part, error))? == bytes {
            true => Ok(()),
            false => Err(TableError::Truncated { part }),
        }
    }
}

/// Returns the error for a file that does not begin as Arrow IPC does.
fn not_arrow(first: &[u8]) -> TableError {
    let found = match first {
        [b'F', b'E', b'A', b'1', ..] => "it is a Feather file of version 1".to_owned(),
        other => format!("it begins with the bytes {other:02x?}"),
    };
    TableError::Format { format: TableKind::Arrow.name(), found }
}

/// The rows of a file or a stream.
struct IpcBatches {
    messages: Messages,
    schema: SchemaRef,
    /// The positions of the selected fields in the schema, ascending.
    selected: Vec<usize>,
    fields: Fields,
    /// The values of each dictionary. The map is never iterated, so its order does not matter.
    dictionaries: HashMap<i64, ArrayRef>,
    /// For each dictionary of a selected field, the number of bytes of the messages that contain its values.
    dictionary_bytes: BTreeMap<i64, u64>,
    /// The rest of a record batch of which some rows were skipped.
    pending: Option<RecordBatch>,
}

impl IpcBatches {
    /// Reads the dictionaries up to the next record batch, and the metadata of this batch. Returns `None` at
    /// the end.
    fn next_head(&mut self) -> Result<Option<Head>, TableError> {
        while let Some(head) = self.messages.next()? {
            let kind = decoding(METADATA, || Ok::<_, ArrowError>(head.message()?.header_type()))?;
            match kind {
                MessageHeader::RecordBatch => return Ok(Some(head)),
                MessageHeader::DictionaryBatch => self.read_dictionary(&head)?,
                _ => return Err(bad(METADATA, "it announces neither a record batch nor a dictionary")),
            }
        }
        Ok(None)
    }

    /// Reads the bytes that follow the metadata of a message.
    fn body(&mut self, head: &Head, part: &'static str) -> Result<Buffer, TableError> {
        if head.body > BATCH_BYTES_MAX {
            return Err(TableError::TooLarge { part, bytes: head.body, max: BATCH_BYTES_MAX });
        }
        Ok(Buffer::from_vec(self.messages.read(head.body, part)?))
    }

    /// Reads a message that defines a dictionary or adds values to it. Discards the message if no selected
    /// field uses the dictionary.
    fn read_dictionary(&mut self, head: &Head) -> Result<(), TableError> {
        let (id, is_delta) = decoding(DICTIONARY, || {
            let message = head.message()?;
            let batch = message.header_as_dictionary_batch();
            let batch = batch.ok_or_else(|| ArrowError::IpcError("it has no head".into()))?;
            Ok::<_, ArrowError>((batch.id(), batch.isDelta()))
        })?;
        let Some(&before) = self.dictionary_bytes.get(&id) else {
            return self.messages.discard(head.body, DICTIONARY);
        };
        let body = self.body(head, DICTIONARY)?;
        let mut dictionaries = std::mem::take(&mut self.dictionaries);
        let (all, bytes) = decoding(DICTIONARY, || {
            let message = head.message()?;
            let batch = message.header_as_dictionary_batch();
            let batch = batch.ok_or_else(|| ArrowError::IpcError("it has no head".into()))?;
            let data = batch.data().ok_or_else(|| ArrowError::IpcError("it has no data".into()))?;
            let bytes = check_buffers(&data, &body)?.max(head.body);
            read_dictionary(&body, batch, &self.schema, &mut dictionaries, &message.version())?;
            Ok::<_, ArrowError>((dictionaries, bytes))
        })?;
        self.dictionaries = all;
        self.dictionary_bytes.insert(id, if is_delta { before.saturating_add(bytes) } else { bytes });
        let bytes = self.dictionary_bytes.values().fold(0u64, |sum, &bytes| sum.saturating_add(bytes));
        match bytes > BATCH_BYTES_MAX {
            true => Err(TableError::TooLarge { part: "all dictionaries", bytes, max: BATCH_BYTES_MAX }),
            false => Ok(()),
        }
    }

    /// Reads and decodes the record batch that follows `head`.
    fn decode(&mut self, head: &Head) -> Result<RecordBatch, TableError> {
        let body = self.body(head, BATCH)?;
        decoding(BATCH, || {
            let message = head.message()?;
            let batch = record_batch(&message)?;
            check_buffers(&batch, &body)?;
            let version: MetadataVersion = message.version();
            let schema = Arc::clone(&self.schema);
            RecordBatchDecoder::try_new(&body, batch, schema, &self.dictionaries, &version)?
                .with_projection(Some(&self.selected))
                .read_record_batch()
        })
    }
}

fn record_batch<'a>(message: &Message<'a>) -> Result<arrow_ipc::RecordBatch<'a>, ArrowError> {
    let batch = message.header_as_record_batch();
    batch.ok_or_else(|| ArrowError::IpcError("it has no head".into()))
}

/// Checks that the buffers of a record batch lie within its body, and that they are not too large when they
/// are unpacked. Returns their total size after unpacking, in bytes. Buffers that are not packed count, too:
/// the decoder copies each of them that is not aligned, and all copies together may be larger than the body,
/// because buffers may overlap.
fn check_buffers(batch: &arrow_ipc::RecordBatch<'_>, body: &Buffer) -> Result<u64, ArrowError> {
    let mut total = 0u64;
    for buffer in batch.buffers().into_iter().flatten() {
        let range = usize::try_from(buffer.offset()).ok().zip(usize::try_from(buffer.length()).ok());
        let range = range.and_then(|(start, bytes)| Some(start..start.checked_add(bytes)?));
        let bytes = range.and_then(|range| body.get(range));
        let bytes = bytes.ok_or_else(|| ArrowError::IpcError("a buffer lies beyond the end".into()))?;
        let unpacked = match (batch.compression(), bytes.first_chunk()) {
            (Some(_), Some(&size)) => u64::try_from(i64::from_le_bytes(size)).ok(),
            _ => None,
        };
        let unpacked = unpacked.unwrap_or(bytes.len() as u64);
        // The decoder allocates this memory before it unpacks anything.
        if unpacked / UNPACKED_RATIO_MAX > bytes.len() as u64 {
            let (packed, most) = (bytes.len(), UNPACKED_RATIO_MAX * bytes.len() as u64);
            let text = format!(
                "a buffer of {packed} bytes says that it has {unpacked} when it is unpacked, expected at most {most}"
            );
            return Err(ArrowError::IpcError(text));
        }
        total = total.saturating_add(unpacked);
    }
    match total > BATCH_BYTES_MAX {
        true => Err(ArrowError::IpcError(format!(
            "it has {total} bytes when it is unpacked, expected at most {BATCH_BYTES_MAX}"
        ))),
        false => Ok(total),
    }
}

impl Batches for IpcBatches {
    fn fields(&self) -> &Fields {
        &self.fields
    }

    fn next(&mut self) -> Result<Option<RecordBatch>, TableError> {
        if let Some(batch) = self.pending.take() {
            return Ok(Some(batch));
        }
        match self.next_head()? {
            Some(head) => self.decode(&head).map(Some),
            None => Ok(None),
        }
    }

    fn skip(&mut self, rows: u64) -> Result<u64, TableError> {
        if rows == 0 || self.pending.is_some() {
            return Ok(0);
        }
        while let Some(head) = self.next_head()? {
            let length = decoding(BATCH, || Ok::<_, ArrowError>(record_batch(&head.message()?)?.length()))?;
            let length = u64::try_from(length).map_err(|_| bad(BATCH, "its length is negative"))?;
            if length > rows {
                let batch = self.decode(&head)?;
                self.pending = Some(batch.slice(rows as usize, batch.num_rows() - rows as usize));
                return Ok(rows);
            }
            self.messages.discard(head.body, BATCH)?;
            if length > 0 {
                return Ok(length);
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::Int32Array;
    use arrow_ipc::CompressionType;

    use super::*;
    use crate::formats::columnar::written::{How, bytes};

    /// Returns the metadata of a record batch with 600 fields, and the number of its buffers. All buffers
    /// overlap: each one claims the whole body, which has `size` bytes.
    fn overlapping(compression: Option<CompressionType>, size: u64) -> (Vec<u8>, u64) {
        let field = |at: i32| (at.to_string(), Arc::new(Int32Array::from(vec![at])) as ArrayRef);
        let table = RecordBatch::try_from_iter((0..600).map(field)).unwrap();
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("table");
        std::fs::write(&path, bytes(&table, How::Arrow { is_file: false, compression }, 1)).unwrap();
        let mut messages = ArrowFile::open(&path).unwrap().messages;
        let mut head = messages.next().unwrap().unwrap();
        let (range, count) = {
            let message = head.message().unwrap();
            let buffers = record_batch(&message).unwrap().buffers().unwrap();
            let begin = buffers.bytes().as_ptr() as usize - head.metadata.as_ptr() as usize;
            (begin..begin + buffers.bytes().len(), buffers.len() as u64)
        };
        for buffer in head.metadata[range].chunks_mut(16) {
            buffer[..8].fill(0);
            buffer[8..].copy_from_slice(&size.to_le_bytes());
        }
        (head.metadata, count)
    }

    #[test]
    fn buffers_that_overlap_are_counted() {
        // The first bytes of a buffer, -1, say that it is not packed.
        for compression in [None, Some(CompressionType::ZSTD)] {
            let (_, count) = overlapping(compression, 0);
            let most = BATCH_BYTES_MAX / count;
            for (size, fits) in [(most, true), (most + 1, false)] {
                let (metadata, _) = overlapping(compression, size);
                let message = root_as_message(&metadata).unwrap();
                let body = Buffer::from_vec(vec![0xffu8; size as usize]);
                let checked = check_buffers(&record_batch(&message).unwrap(), &body);
                assert_eq!(checked.ok(), fits.then_some(most * count), "{compression:?} {size}");
            }
        }
    }

    #[test]
    fn a_short_buffer_cannot_claim_to_be_long() {
        let (metadata, count) = overlapping(Some(CompressionType::ZSTD), 8);
        let message = root_as_message(&metadata).unwrap();
        let most = 9 * UNPACKED_RATIO_MAX - 1;
        for (size, fits) in [(most, true), (most + 1, false)] {
            let body = Buffer::from_vec(size.to_le_bytes().to_vec());
            let checked = check_buffers(&record_batch(&message).unwrap(), &body);
            assert_eq!(checked.ok(), fits.then_some(most * count), "{size}");
        }
    }
}
