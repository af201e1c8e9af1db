//! The pages of a column chunk. A page is refused if it would make the crate `parquet` allocate more memory
//! than the chunk declares. This module must not depend on files.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parquet::basic::{Encoding, Type};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::serialized_reader::SerializedPageReader;

use super::chunk::{Chunk, Source};
use super::delta::lengths_fit;
use super::levels::{has_levels, has_packed_levels};

/// The maximum number of values of a page. Even a page of few bytes may declare many values.
const PAGE_VALUES_MAX: u32 = 1 << 26;
/// The maximum number of bytes of the values that are decoded at a time. Each value is counted as if it were
/// as long as the longest one.
const DECODED_BYTES_MAX: u64 = 1 << 30;

/// A column of a row group.
pub(super) struct Leaf {
    pub(super) leaf: usize,
    /// The column's range in the file.
    pub(super) range: Range<u64>,
    /// True if the column has a list in each row.
    pub(super) is_list: bool,
    /// The maximum number of values in all pages that one batch of rows reads to their end.
    pub(super) batch: u64,
}

/// A reader of the pages of a column chunk.
pub(super) struct Pages {
    inner: SerializedPageReader<Chunk>,
    limits: Limits,
    /// The number of batches of rows that have been begun so far.
    begun: Arc<AtomicU64>,
}

impl Pages {
    /// Creates a reader of a column. `rows` is the number of rows of the column's group, and `leaves` is the
    /// number of columns that are read at the same time.
    ///
    /// # Errors
    /// If the values that are decoded at a time may together exceed [`DECODED_BYTES_MAX`].
    pub(super) fn new(
        source: &Arc<Source>,
        chunk: &ColumnChunkMetaData,
        leaf: &Leaf,
        rows: usize,
        leaves: usize,
        begun: &Arc<AtomicU64>,
    ) -> Result<Self> {
        let column = chunk.column_descr();
        let left = u64::try_from(chunk.num_values()).unwrap_or(0);
        // If a list is too long, up to two pages of values may be decoded beyond `leaf.batch`: the rest of a
        // page that the previous batch began, and the page that exceeds the limit. The excess is noticed only
        // when the next page is requested.
        let more = if leaf.is_list { 2 * u64::from(PAGE_VALUES_MAX) } else { 0 };
        let limits = Limits {
            left,
            lists: u16::try_from(column.max_rep_level()).unwrap_or(0),
            levels: usize::from(column.max_rep_level() > 0) + usize::from(column.max_def_level() > 0),
            strings: column.physical_type() == Type::BYTE_ARRAY,
            decoded: leaf.batch.saturating_add(more).min(left),
            // A field without lists has one value per row, so the number of rows limits its values already.
            most: if leaf.is_list { leaf.batch } else { u64::MAX },
            used: 0,
            batch: 0,
        };
        if column.physical_type() == Type::FIXED_LEN_BYTE_ARRAY {
            limits.check_longest(u64::try_from(column.type_length()).unwrap_or(0))?;
        }
        let bytes = Arc::new(Chunk::new(Arc::clone(source), leaf.range.clone(), leaves));
        let inner = SerializedPageReader::new(bytes, chunk, rows, None)?;
        Ok(Self { inner, limits, begun: Arc::clone(begun) })
    }
}

/// The limits of what the pages of a chunk may declare.
struct Limits {
    /// The number of values in the chunk's remaining pages.
    left: u64,
    /// The largest level of a list, which is the number of lists that contain each other.
    lists: u16,
    /// The number of lists of levels at the beginning of a page of version 1.
    levels: usize,
    /// True if the values are strings, whose lengths are stored with them.
    strings: bool,
    /// The maximum number of values that are decoded at a time.
    decoded: u64,
    /// The maximum number of values in all pages that one batch of rows reads to their end.
    most: u64,
    /// The number of values in the pages that were read for the current batch.
    used: u64,
    /// The number of batches that had been begun when the most recent page was read. It identifies the
    /// current batch of rows.
    batch: u64,
}

impl Limits {
    /// Checks the counts and lengths that a page declares. `batch` is the number of batches begun, and so
    /// identifies the batch of rows that needs the page.
    fn check(&mut self, page: &Page, batch: u64) -> Result<()> {
        let values = page.num_values();
        if values > PAGE_VALUES_MAX {
            return Err(bad(format!("a page has {values} values, expected at most {PAGE_VALUES_MAX}")));
        }
        if let Page::DictionaryPage { buf, .. } = page {
            return self.check_dictionary(values, buf);
        }
        match self.left.checked_sub(values.into()) {
            Some(left) => self.left = left,
            None => {
                return Err(bad(format!(
                    "a page has {values} values, but its column has only {} left",
                    self.left
                )));
            }
        }
        if self.lists > 0 && self.has_list_levels(page, values.into()) != Some(true) {
            return Err(bad(format!("a page of {values} values has fewer levels of lists")));
        }
        if batch != self.batch {
            (self.batch, self.used) = (batch, 0);
        }
        // The decoder requests a page only after it has decoded all values of the pages before it. Those
        // values are in memory.
        if self.used > self.most {
            return Err(bad(format!("some rows have {} values, expected at most {}", self.used, self.most)));
        }
        self.used = self.used.saturating_add(values.into());
        let lists = match page.encoding() {
            Encoding::DELTA_LENGTH_BYTE_ARRAY => 1,
            Encoding::DELTA_BYTE_ARRAY => 2,
            _ => return Ok(()),
        };
        match self.values(page).is_some_and(|bytes| lengths_fit(bytes, lists, values.into())) {
            true => Ok(()),
            false => Err(bad(format!("a page of {values} strings does not have as many lengths"))),
        }
    }

    /// Checks a dictionary. Any of its entries may be used many times, so each decoded value is counted as
    /// if it were as long as the longest entry.
    fn check_dictionary(&self, entries: u32, bytes: &[u8]) -> Result<()> {
        if entries as usize > bytes.len() {
            return Err(bad(format!("a dictionary of {} bytes has {entries} entries", bytes.len())));
        }
        match self.strings {
            true => self.check_longest(longest(bytes)),
            false => Ok(()),
        }
    }

    /// Checks that the values that are decoded at a time would not exceed [`DECODED_BYTES_MAX`] together if
    /// each had `longest` bytes.
    fn check_longest(&self, longest: u64) -> Result<()> {
        match longest.saturating_mul(self.decoded) > DECODED_BYTES_MAX {
            true => Err(bad(format!(
                "{} values of up to {longest} bytes are decoded at a time, expected at most {DECODED_BYTES_MAX} \
                 bytes: write shorter values, or fewer rows into each group",
                self.decoded
            ))),
            false => Ok(()),
        }
    }

    /// Returns whether the page has as many levels of lists as values; `None` if it ends too early.
    fn has_list_levels(&self, page: &Page, values: u64) -> Option<bool> {
        let runs = match page {
            Page::DataPageV2 { buf, rep_levels_byte_len, .. } => buf.get(..*rep_levels_byte_len as usize)?,
            Page::DataPage { buf, rep_level_encoding: Encoding::RLE, .. } => {
                let (length, levels) = buf.split_first_chunk()?;
                levels.get(..u32::from_le_bytes(*length) as usize)?
            }
            // The older encoding has neither runs nor a length.
            Page::DataPage { buf, .. } => return Some(has_packed_levels(buf, self.lists, values)),
            Page::DictionaryPage { .. } => return Some(true),
        };
        Some(has_levels(runs, self.lists, values))
    }

    /// Returns the bytes of a page that follow its levels; `None` if the page ends too early.
    fn values<'p>(&self, page: &'p Page) -> Option<&'p [u8]> {
        match page {
            Page::DataPageV2 { buf, rep_levels_byte_len, def_levels_byte_len, .. } => {
                buf.get(rep_levels_byte_len.checked_add(*def_levels_byte_len)? as usize..)
            }
            Page::DataPage { buf, .. } => {
                let mut rest = &buf[..];
                for _ in 0..self.levels {
                    // Each list of levels begins with its length. An older encoding of levels has no length,
                    // but it had been replaced before the delta encodings of values were introduced. Only
                    // pages with delta encodings are checked here.
                    let (length, levels) = rest.split_first_chunk()?;
                    rest = levels.get(u32::from_le_bytes(*length) as usize..)?;
                }
                Some(rest)
            }
            Page::DictionaryPage { .. } => None,
        }
    }
}

/// Returns the length of the longest string, in bytes. In `strings`, each string is preceded by its length.
fn longest(mut strings: &[u8]) -> u64 {
    let mut longest = 0;
    while let Some((&bytes, rest)) = strings.split_first_chunk() {
        let bytes = u32::from_le_bytes(bytes);
        let Some(rest) = rest.get(bytes as usize..) else { break };
        (strings, longest) = (rest, longest.max(bytes));
    }
    longest.into()
}

fn bad(text: String) -> ParquetError {
    ParquetError::General(text)
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.inner.get_next_page()?;
        if let Some(page) = &page {
            self.limits.check(page, self.begun.load(Ordering::Relaxed))?;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.inner.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.inner.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.inner.at_record_boundary()
    }
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(values: u32, encoding: Encoding, bytes: &[u8]) -> Page {
        Page::DataPage {
            buf: bytes.to_vec().into(),
            num_values: values,
            encoding,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        }
    }

    fn limits(left: u64) -> Limits {
        Limits { left, lists: 0, levels: 0, strings: false, decoded: 1024, most: u64::MAX, used: 0, batch: 0 }
    }

    #[test]
    fn pages_have_no_more_values_than_their_column() {
        let mut limits = limits(10);
        limits.check(&page(4, Encoding::PLAIN, &[]), 0).unwrap();
        limits.check(&page(6, Encoding::RLE_DICTIONARY, &[]), 0).unwrap();
        let error = limits.check(&page(1, Encoding::PLAIN, &[]), 0).unwrap_err().to_string();
        assert!(error.contains("a page has 1 values, but its column has only 0 left"), "{error}");
        let mut limits = Limits { left: u64::MAX, ..limits };
        limits.check(&page(PAGE_VALUES_MAX, Encoding::PLAIN, &[]), 0).unwrap();
        let error =
            limits.check(&page(PAGE_VALUES_MAX + 1, Encoding::PLAIN, &[]), 0).unwrap_err().to_string();
        assert!(error.contains("expected at most 67108864"), "{error}");
    }

    #[test]
    fn pages_of_lists_have_a_level_for_each_value() {
        let limits = || Limits { lists: 1, levels: 1, ..limits(99) };
        // A run of ten levels, and its length.
        let bytes = [2, 0, 0, 0, 20, 1];
        limits().check(&page(10, Encoding::PLAIN, &bytes), 0).unwrap();
        for page in [page(11, Encoding::PLAIN, &bytes), page(10, Encoding::PLAIN, &bytes[..5])] {
            let error = limits().check(&page, 0).unwrap_err().to_string();
            assert!(error.contains("values has fewer levels of lists"), "{error}");
        }
    }

    #[test]
    fn a_dictionary_has_no_more_entries_than_bytes() {
        let mut limits = limits(0);
        let dictionary = |num_values| Page::DictionaryPage {
            buf: vec![0; 4].into(),
            num_values,
            encoding: Encoding::PLAIN,
            is_sorted: false,
        };
        limits.check(&dictionary(4), 0).unwrap();
        assert!(
            limits
                .check(&dictionary(1 << 30), 0)
                .unwrap_err()
                .to_string()
                .contains("expected at most 67108864")
        );
        assert!(limits.check(&dictionary(5), 0).unwrap_err().to_string().contains("has 5 entries"));
    }

    #[test]
    fn long_entries_of_a_dictionary_are_refused() {
        let entries = |bytes: &[usize]| {
            let entry = |&bytes: &usize| [&(bytes as u32).to_le_bytes()[..], &vec![7; bytes]].concat();
            Page::DictionaryPage {
                buf: bytes.iter().flat_map(entry).collect::<Vec<_>>().into(),
                num_values: bytes.len() as u32,
                encoding: Encoding::PLAIN,
                is_sorted: false,
            }
        };
        let mut strings = Limits { strings: true, ..limits(9) };
        strings.check(&entries(&[3, 1 << 20, 0]), 1).unwrap();
        let error = strings.check(&entries(&[3, (1 << 20) + 1, 0]), 1).unwrap_err().to_string();
        assert!(error.contains("1024 values of up to 1048577 bytes"), "{error}");
        assert_eq!(longest(&[2, 0, 0, 0, 1, 1, 9, 0, 0, 0, 1]), 2, "the second string is cut");
        // Values of a fixed size are checked before their pages.
        limits(9).check_longest(1 << 20).unwrap();
        limits(9).check_longest((1 << 20) + 1).unwrap_err();
    }

    #[test]
    fn the_values_of_a_batch_are_limited() {
        let mut limits = Limits { most: 10, ..limits(1000) };
        let page = |values| page(values, Encoding::PLAIN, &[]);
        for batch in 1..4 {
            limits.check(&page(6), batch).unwrap();
            limits.check(&page(4), batch).unwrap();
            limits.check(&page(90), batch).unwrap();
        }
        let error = limits.check(&page(1), 3).unwrap_err().to_string();
        assert!(error.contains("some rows have 100 values, expected at most 10"), "{error}");
    }

    #[test]
    fn strings_have_no_more_lengths_than_the_page() {
        // One list of levels with 2 bytes, then 2^35 lengths.
        let bytes = [&[2, 0, 0, 0, 9, 9, 0x80, 1, 4][..], &[0x80; 5], &[1, 10]].concat();
        for encoding in [Encoding::DELTA_BYTE_ARRAY, Encoding::DELTA_LENGTH_BYTE_ARRAY] {
            let mut limits = Limits { levels: 1, ..limits(99) };
            let error = limits.check(&page(3, encoding, &bytes), 0).unwrap_err().to_string();
            assert!(error.contains("a page of 3 strings"), "{error}");
            limits.check(&page(3, encoding, &bytes[..5]), 0).unwrap_err();
        }
    }
}
