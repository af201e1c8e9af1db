//! Reads the rows of a Parquet file, one row group after the other. This module must not depend on what the
//! fields stand for.
//!
//! Wanted properties: (A) the rows are those of the file, in order; (B) of each field that is read, at most
//! one page and [`Chunk`](chunk::Chunk)'s window are in memory, besides the rows returned; (C) a damaged
//! file causes an error, and costs no more memory than a valid one.

mod chunk;
mod delta;
mod footer;
mod levels;
mod pages;
mod thrift;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::RecordBatch;
use arrow_schema::Fields;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, RowGroups, RowSelection, RowSelector};
use parquet::arrow::{
    FieldLevels, ProjectionMask, parquet_to_arrow_field_levels, parquet_to_arrow_schema_by_columns,
};
use parquet::basic::Compression;
use parquet::column::page::{PageIterator, PageReader};
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader, ParquetStatisticsPolicy, RowGroupMetaData,
};

use self::chunk::Source;
use self::footer::checked_schema;
use self::pages::{Leaf, Pages};
use super::batches::Batches;
use super::decoding::{bad, decoding, unreadable};
use super::selection::{Selection, Wanted};
use crate::formats::table_kind::TableKind;
use crate::unpacked::open_either;
use crate::{InputError, TableError};

/// The bytes with which a Parquet file begins and ends.
const MAGIC: &[u8; 4] = b"PAR1";
/// The number of bytes after the footer: the footer's length, and the magic bytes.
const TAIL_BYTES: u64 = 8;
/// The maximum number of bytes of a footer.
const FOOTER_BYTES_MAX: u64 = 64 << 20;
/// The number of values that a row group may have beyond the maximum for valid rows. The margin allows rows
/// whose lists are too long, because these are errors of the rows, not of the file.
const MORE_VALUES_MAX: u64 = 1 << 24;

/// The names of two parts of a file, for errors.
const FOOTER: &str = "the footer";
const GROUP: &str = "a row group";

/// A Parquet file that was opened, and its footer.
pub(super) struct ParquetFile {
    pub(super) path: PathBuf,
    source: Arc<Source>,
    metadata: Arc<ParquetMetaData>,
}

impl ParquetFile {
    /// Opens a file or an object, and reads its footer.
    ///
    /// # Errors
    /// If the file does not exist, cannot be read, or is not a Parquet file.
    pub(super) fn open(path: &Path) -> Result<Self, InputError> {
        // A packed file is found, too, so that the error can say that it is packed.
        let path = open_either(path)?.path;
        let read = |source| InputError::Read { file: path.clone(), offset: 0, source };
        let source = Source::open(&path).map_err(read)?;
        let metadata = metadata(&source)
            .map_err(|problem| InputError::Table { file: path.clone(), problem: Box::new(problem) })?;
        Ok(Self { path, source: Arc::new(source), metadata: Arc::new(metadata) })
    }

    /// Returns the number of rows in each row group.
    fn group_rows(&self) -> Result<Vec<u64>, TableError> {
        let rows = |group: &RowGroupMetaData| u64::try_from(group.num_rows());
        let rows = self.metadata.row_groups().iter().map(rows).collect::<Result<Vec<_>, _>>();
        rows.map_err(|_| bad(FOOTER, "a row group has a negative number of rows"))
    }

    /// Returns the number of rows of the file.
    ///
    /// # Errors
    /// If the footer is damaged.
    pub(super) fn rows(&self) -> Result<u64, TableError> {
        let rows = self.group_rows()?.into_iter().try_fold(0u64, u64::checked_add);
        rows.ok_or_else(|| bad(FOOTER, "the number of rows overflows"))
    }

    /// Starts to read the wanted fields, at most `batch` rows at a time. Returns the rows and, for each
    /// wanted field, its position in a row.
    ///
    /// # Errors
    /// If the file lacks a field, or if the footer is damaged.
    pub(super) fn batches(
        self,
        wanted: &[Wanted],
        batch: usize,
    ) -> Result<(Box<dyn Batches>, Vec<usize>), TableError> {
        let schema = self.metadata.file_metadata().schema_descr_ptr();
        let names: Vec<&str> = schema.root_schema().get_fields().iter().map(|field| field.name()).collect();
        let selection = Selection::new(wanted, &names)?;
        let (levels, fields) = decoding("the schema", || {
            // Uses the types of the Parquet schema. Ignores the Arrow types that the writer may have stored.
            let mask = ProjectionMask::roots(&schema, selection.fields.iter().copied());
            let types = parquet_to_arrow_schema_by_columns(&schema, mask.clone(), None)?;
            Ok::<_, ParquetError>((parquet_to_arrow_field_levels(&schema, mask, None)?, types.fields))
        })?;
        if fields.len() != selection.fields.len() {
            return Err(bad("the schema", "a field is an empty group"));
        }
        let root = |leaf| selection.fields.binary_search(&schema.get_column_root_idx(leaf)).ok();
        let leaves =
            (0..schema.num_columns()).filter_map(|leaf| Some((leaf, selection.elements[root(leaf)?])));
        let (leaves, groups): (Vec<_>, _) = (leaves.collect(), self.group_rows()?);
        for group in self.metadata.row_groups() {
            for chunk in leaves.iter().filter_map(|&(leaf, _)| group.columns().get(leaf)) {
                check_codec(chunk.compression())?;
            }
        }
        let Self { source, metadata, .. } = self;
        let (next, open, begun) = (0, None, Arc::default());
        let batches =
            RowGroupBatches { source, metadata, fields, levels, leaves, groups, batch, next, open, begun };
        Ok((Box::new(batches), selection.positions))
    }
}

/// Checks that the pages are packed with a codec that allows a limit on the size of the unpacked data.
fn check_codec(codec: Compression) -> Result<(), TableError> {
    let codec = match codec {
        Compression::UNCOMPRESSED | Compression::SNAPPY | Compression::ZSTD(_) | Compression::LZ4_RAW => {
            return Ok(());
        }
        Compression::GZIP(_) => "gzip",
        Compression::LZ4 => "the older LZ4",
        Compression::BROTLI(_) => "Brotli",
        Compression::LZO => "LZO",
    };
    Err(TableError::Codec { codec })
}

/// Reads the footer of a file.
fn metadata(source: &Source) -> Result<ParquetMetaData, TableError> {
    let size = source.size();
    let read = |range| source.read(range).map_err(|error| unreadable(FOOTER, error));
    let format = |found: String| TableError::Format { format: TableKind::Parquet.name(), found };
    let first = read(0..size.min(MAGIC.len() as u64))?;
    if first.starts_with(&[0x1f, 0x8b]) || first == [0x28, 0xb5, 0x2f, 0xfd][..] {
        let packing = if first[0] == 0x1f { "gzip" } else { "zstd" };
        return Err(TableError::Packed { packing });
    }
    if first == b"PARE"[..] {
        return Err(bad(FOOTER, "the file is encrypted"));
    }
    if first != MAGIC[..] {
        return Err(format(format!("it begins with the bytes {:02x?}", &first[..])));
    }
    if size < MAGIC.len() as u64 + TAIL_BYTES {
        return Err(TableError::Truncated { part: FOOTER });
    }
    let tail = read(size - TAIL_BYTES..size)?;
    if tail[4..] != MAGIC[..] {
        return Err(TableError::Truncated { part: "the data or the footer" });
    }
    let bytes = u64::from(u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]));
    if bytes > FOOTER_BYTES_MAX {
        return Err(TableError::TooLarge { part: FOOTER, bytes, max: FOOTER_BYTES_MAX });
    }
    let end = size - TAIL_BYTES;
    let begin = end.checked_sub(bytes).filter(|&begin| begin >= MAGIC.len() as u64);
    let footer = read(begin.ok_or(TableError::Truncated { part: FOOTER })?..end)?;
    // The checked schema is decoded separately and passed to the decoder of the footer. Otherwise, that
    // decoder could use another schema in the footer, which was not checked.
    let schema = checked_schema(&footer).map_err(|reason| bad(FOOTER, reason))?;
    let schema = decoding(FOOTER, || ParquetMetaDataReader::decode_schema(&schema))?;
    let skip = || ParquetStatisticsPolicy::SkipAll;
    let options = ParquetMetaDataOptions::new()
        .with_schema(schema)
        .with_column_stats_policy(skip())
        .with_size_stats_policy(skip())
        .with_encoding_stats_policy(skip());
    decoding(FOOTER, || ParquetMetaDataReader::decode_metadata_with_options(&footer, Some(&options)))
}

/// The rows of a Parquet file.
struct RowGroupBatches {
    source: Arc<Source>,
    metadata: Arc<ParquetMetaData>,
    fields: Fields,
    levels: FieldLevels,
    /// The columns that are read from the file, each with its maximum number of values in a valid row.
    leaves: Vec<(usize, usize)>,
    /// The number of rows of each row group.
    groups: Vec<u64>,
    /// The number of rows that are decoded at a time.
    batch: usize,
    /// The index of the next row group.
    next: usize,
    open: Option<OpenGroup>,
    /// The number of batches that have been begun. It is shared with the readers of the pages.
    begun: Arc<AtomicU64>,
}

/// The row group that is being read.
struct OpenGroup {
    reader: ParquetRecordBatchReader,
    /// The number of rows that have not been read yet.
    left: u64,
}

impl RowGroupBatches {
    /// Opens the next row group, and skips its first `skipped` rows.
    fn open_next(&mut self, skipped: u64) -> Result<(), TableError> {
        let group = self.metadata.row_group(self.next);
        let rows = self.groups[self.next];
        let mut leaves = Vec::new();
        for &(leaf, elements) in &self.leaves {
            let chunk = group.columns().get(leaf).ok_or_else(|| bad(GROUP, "it lacks a column"))?;
            let (start, bytes) = decoding(GROUP, || Ok::<_, ParquetError>(chunk.byte_range()))?;
            let end = start.checked_add(bytes).filter(|&end| end <= self.source.size());
            let range = start..end.ok_or(TableError::Truncated { part: GROUP })?;
            // The skipped rows count, too, because their pages may have to be decoded.
            let valid = skipped.saturating_add(self.batch as u64).saturating_mul(elements as u64);
            let is_list = chunk.column_descr().max_rep_level() > 0;
            let batch = if is_list { valid.saturating_add(MORE_VALUES_MAX) } else { self.batch as u64 };
            leaves.push(Leaf { leaf, range, is_list, batch });
            let most = rows.saturating_mul(elements as u64).saturating_add(MORE_VALUES_MAX);
            if u64::try_from(chunk.num_values()).map_or(true, |values| values > most) {
                let name = chunk.column_path();
                let text = format!("'{name}' has {} values in {rows} rows", chunk.num_values());
                return Err(bad(GROUP, text));
            }
        }
        let (source, metadata, begun) =
            (Arc::clone(&self.source), Arc::clone(&self.metadata), Arc::clone(&self.begun));
        let group = Group { source, metadata, index: self.next, rows: rows as usize, leaves, begun };
        let skip = [RowSelector::skip(skipped as usize), RowSelector::select((rows - skipped) as usize)];
        let selection = (skipped > 0).then(|| RowSelection::from(skip.to_vec()));
        let reader = decoding(GROUP, || {
            ParquetRecordBatchReader::try_new_with_row_groups(&self.levels, &group, self.batch, selection)
        })?;
        self.next += 1;
        self.open = Some(OpenGroup { reader, left: rows - skipped });
        Ok(())
    }
}

impl Batches for RowGroupBatches {
    fn fields(&self) -> &Fields {
        &self.fields
    }

    fn next(&mut self) -> Result<Option<RecordBatch>, TableError> {
        loop {
            let Some(open) = &mut self.open else {
                if self.next == self.groups.len() {
                    return Ok(None);
                }
                self.open_next(0)?;
                continue;
            };
            self.begun.fetch_add(1, Ordering::Relaxed);
            match decoding(GROUP, || open.reader.next().transpose())? {
                Some(batch) => {
                    let left = open.left.checked_sub(batch.num_rows() as u64);
                    open.left = left.ok_or_else(|| bad(GROUP, "it has more rows than the footer says"))?;
                    return Ok(Some(batch));
                }
                None if open.left > 0 => return Err(bad(GROUP, "it has fewer rows than the footer says")),
                None => self.open = None,
            }
        }
    }

    fn skip(&mut self, rows: u64) -> Result<u64, TableError> {
        if let Some(open) = &self.open {
            if open.left > rows {
                return Ok(0);
            }
            let left = open.left;
            self.open = None;
            if left > 0 {
                return Ok(left);
            }
        }
        while let Some(&group) = self.groups.get(self.next).filter(|_| rows > 0) {
            if group > rows {
                self.open_next(rows)?;
                return Ok(rows);
            }
            self.next += 1;
            if group > 0 {
                return Ok(group);
            }
        }
        Ok(0)
    }
}

/// A row group, some of whose columns are being read.
struct Group {
    source: Arc<Source>,
    metadata: Arc<ParquetMetaData>,
    index: usize,
    rows: usize,
    leaves: Vec<Leaf>,
    begun: Arc<AtomicU64>,
}

impl RowGroups for Group {
    fn num_rows(&self) -> usize {
        self.rows
    }

    fn column_chunks(&self, leaf: usize) -> Result<Box<dyn PageIterator>, ParquetError> {
        let place = self.leaves.binary_search_by_key(&leaf, |column| column.leaf);
        let place = place.map_err(|_| ParquetError::General("a column was not selected".to_owned()))?;
        let chunk = self.metadata.row_group(self.index).column(leaf);
        let pages =
            Pages::new(&self.source, chunk, &self.leaves[place], self.rows, self.leaves.len(), &self.begun)?;
        Ok(Box::new(OneChunk { pages: Some(pages) }))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(std::iter::once(self.metadata.row_group(self.index)))
    }

    fn metadata(&self) -> &ParquetMetaData {
        &self.metadata
    }
}

/// An iterator over the only chunk that a column has in a row group.
struct OneChunk {
    pages: Option<Pages>,
}

impl Iterator for OneChunk {
    type Item = Result<Box<dyn PageReader>, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(Ok(Box::new(self.pages.take()?)))
    }
}

impl PageIterator for OneChunk {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_without_a_limit_of_size_are_refused() {
        for codec in [Compression::GZIP(Default::default()), Compression::LZ4, Compression::LZO] {
            let error = check_codec(codec).unwrap_err().to_string();
            assert!(error.contains("expected Snappy, zstd or LZ4_RAW"), "{error}");
        }
        check_codec(Compression::UNCOMPRESSED).unwrap();
        check_codec(Compression::LZ4_RAW).unwrap();
    }
}
