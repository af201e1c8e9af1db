//! The pages of a column chunk. A page that would make the crate `parquet` allocate more than the chunk
//! declares is refused. This module must not depend on files.

use std::ops::Range;
use std::sync::Arc;

use parquet::basic::Encoding;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::serialized_reader::SerializedPageReader;

use super::chunk::{Chunk, Source};
use super::delta::lengths_fit;

/// A reader of the pages of a column chunk.
pub(super) struct Pages {
    inner: SerializedPageReader<Chunk>,
    limits: Limits,
}

impl Pages {
    /// Creates a reader of the chunk at `range`, one of `chunks` that are read in turn. `rows` is the number
    /// of rows of its group.
    pub(super) fn new(
        source: &Arc<Source>,
        chunk: &ColumnChunkMetaData,
        range: Range<u64>,
        rows: usize,
        chunks: usize,
    ) -> Result<Self> {
        let column = chunk.column_descr();
        let levels = usize::from(column.max_rep_level() > 0) + usize::from(column.max_def_level() > 0);
        let limits = Limits { left: u64::try_from(chunk.num_values()).unwrap_or(0), levels };
        let bytes = Arc::new(Chunk::new(Arc::clone(source), range, chunks));
        Ok(Self { inner: SerializedPageReader::new(bytes, chunk, rows, None)?, limits })
    }
}

/// What the pages of a chunk may declare.
struct Limits {
    /// The number of values that the chunk has after the pages read so far.
    left: u64,
    /// The number of lists of levels at the beginning of a page of version 1.
    levels: usize,
}

impl Limits {
    /// Checks the numbers that a page declares.
    fn check(&mut self, page: &Page) -> Result<()> {
        let values = page.num_values();
        if let Page::DictionaryPage { buf, .. } = page {
            return match values as usize <= buf.len() {
                true => Ok(()),
                false => Err(bad(format!("a dictionary of {} bytes has {values} entries", buf.len()))),
            };
        }
        match self.left.checked_sub(values.into()) {
            Some(left) => self.left = left,
            None => return Err(bad(format!("a page has {values} values, its column only {}", self.left))),
        }
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

    /// Returns the bytes of a page behind its levels; `None` if they end too early.
    fn values<'p>(&self, page: &'p Page) -> Option<&'p [u8]> {
        match page {
            Page::DataPageV2 { buf, rep_levels_byte_len, def_levels_byte_len, .. } => {
                buf.get(rep_levels_byte_len.checked_add(*def_levels_byte_len)? as usize..)
            }
            Page::DataPage { buf, .. } => {
                let mut rest = &buf[..];
                for _ in 0..self.levels {
                    // The older encoding of levels, without a length, is older than these encodings of
                    // values.
                    let (length, levels) = rest.split_first_chunk()?;
                    rest = levels.get(u32::from_le_bytes(*length) as usize..)?;
                }
                Some(rest)
            }
            Page::DictionaryPage { .. } => None,
        }
    }
}

fn bad(text: String) -> ParquetError {
    ParquetError::General(text)
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.inner.get_next_page()?;
        if let Some(page) = &page {
            self.limits.check(page)?;
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

    #[test]
    fn pages_have_no_more_values_than_their_column() {
        let mut limits = Limits { left: 10, levels: 0 };
        limits.check(&page(4, Encoding::PLAIN, &[])).unwrap();
        limits.check(&page(6, Encoding::RLE_DICTIONARY, &[])).unwrap();
        let error = limits.check(&page(1, Encoding::PLAIN, &[])).unwrap_err().to_string();
        assert!(error.contains("a page has 1 values, its column only 0"), "{error}");
    }

    #[test]
    fn a_dictionary_has_no_more_entries_than_bytes() {
        let mut limits = Limits { left: 0, levels: 0 };
        let dictionary = |num_values| Page::DictionaryPage {
            buf: vec![0; 4].into(),
            num_values,
            encoding: Encoding::PLAIN,
            is_sorted: false,
        };
        limits.check(&dictionary(4)).unwrap();
        assert!(limits.check(&dictionary(1 << 30)).unwrap_err().to_string().contains("1073741824 entries"));
    }

    #[test]
    fn strings_have_no_more_lengths_than_the_page() {
        // One list of levels with 2 bytes, then 2^35 lengths.
        let bytes = [&[2, 0, 0, 0, 9, 9, 0x80, 1, 4][..], &[0x80; 5], &[1, 10]].concat();
        for encoding in [Encoding::DELTA_BYTE_ARRAY, Encoding::DELTA_LENGTH_BYTE_ARRAY] {
            let mut limits = Limits { left: 99, levels: 1 };
            let error = limits.check(&page(3, encoding, &bytes)).unwrap_err().to_string();
            assert!(error.contains("a page of 3 strings"), "{error}");
            limits.check(&page(3, encoding, &bytes[..5])).unwrap_err();
        }
    }
}
