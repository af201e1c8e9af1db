//! Reads ranges of a file or an object, and the pages of a column chunk. Reads some bytes ahead and keeps
//! them in a window, because pages follow one another. This module must not depend on what the pages
//! contain.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use super::footer::page_bytes;
use crate::object::{Address, Ranges};

/// The maximum number of bytes of a page. The limit applies to the compressed and to the decompressed size.
pub(super) const PAGE_BYTES_MAX: u64 = 512 << 20;
/// The number of bytes that are read at first in order to find a page's header.
const HEADER_BYTES: u64 = 16 << 10;
/// The maximum number of bytes of a page's header. The header may contain statistics, which include the
/// page's smallest and largest value.
const HEADER_BYTES_MAX: u64 = 1 << 20;
/// The target for the total number of bytes of all windows of a file.
const WINDOWS_BYTES: u64 = 32 << 20;
/// The maximum number of bytes of one window.
const WINDOW_BYTES_MAX: u64 = 2 << 20;

/// A file or an object whose ranges are read.
pub(super) struct Source {
    input: Input,
    size: u64,
}

enum Input {
    File(File),
    Object(Ranges),
}

impl Source {
    /// Opens an existing file or object.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        match Address::of(path) {
            Some(address) => {
                let (ranges, size) = address.ranges()?;
                Ok(Self { input: Input::Object(ranges), size })
            }
            None => {
                let file = File::open(path)?;
                let size = file.metadata()?.len();
                Ok(Self { input: Input::File(file), size })
            }
        }
    }

    /// Returns the size of the file or object in bytes.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Reads the bytes of `range`, which must be within the file or object.
    pub(super) fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        match &self.input {
            Input::File(file) => {
                let mut bytes = vec![0; usize::try_from(range.end - range.start).map_err(io::Error::other)?];
                file.read_exact_at(&mut bytes, range.start)?;
                Ok(bytes.into())
            }
            Input::Object(ranges) => ranges.read(range),
        }
    }
}

/// The bytes of a column chunk. Reads beyond its end fail.
#[derive(Clone)]
pub(super) struct Chunk {
    inner: Arc<Inner>,
}

struct Inner {
    source: Arc<Source>,
    end: u64,
    window_bytes: u64,
    /// The offset of the bytes that were read last, and these bytes.
    window: Mutex<(u64, Bytes)>,
}

impl Chunk {
    /// Creates a reader of the chunk at `range`, without reading anything yet. `chunks` is the number of
    /// chunks that are read at the same time and share [`WINDOWS_BYTES`].
    pub(super) fn new(source: Arc<Source>, range: Range<u64>, chunks: usize) -> Self {
        let share = WINDOWS_BYTES / chunks.max(1) as u64;
        let window_bytes = share.clamp(HEADER_BYTES, WINDOW_BYTES_MAX);
        let window = Mutex::new((range.start, Bytes::new()));
        Self { inner: Arc::new(Inner { source, end: range.end, window_bytes, window }) }
    }

    /// Returns `most` bytes from `start` on, or fewer if the chunk ends earlier.
    fn up_to(&self, start: u64, most: u64) -> io::Result<Bytes> {
        let inner = &self.inner;
        let end = inner.end.min(start.saturating_add(most));
        if start >= end {
            return Ok(Bytes::new());
        }
        let mut window = inner.window.lock().unwrap_or_else(PoisonError::into_inner);
        if start < window.0 || end > window.0 + window.1.len() as u64 {
            let ahead = inner.end.min(start.saturating_add(most.max(inner.window_bytes)));
            *window = (start, inner.source.read(start..ahead)?);
        }
        let at = (start - window.0) as usize;
        Ok(window.1.slice(at..at + (end - start) as usize))
    }

    /// Returns bytes that begin with the header of the page at `start`, and the size of the page in bytes.
    fn header(&self, start: u64) -> io::Result<(Bytes, u64)> {
        let mut most = HEADER_BYTES;
        loop {
            let header = self.up_to(start, most)?;
            if let Some(bytes) = page_bytes(&header) {
                return Ok((header, bytes));
            }
            if (header.len() as u64) < most || most == HEADER_BYTES_MAX {
                return Err(io::Error::other("the header of a page is incomplete or damaged"));
            }
            most = HEADER_BYTES_MAX.min(2 * most);
        }
    }
}

impl Length for Chunk {
    fn len(&self) -> u64 {
        self.inner.source.size()
    }
}

impl ChunkReader for Chunk {
    type T = Header;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Header> {
        Ok(Header { chunk: self.clone(), at: start, rest: None })
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let bytes = self.up_to(start, length as u64)?;
        match bytes.len() == length {
            true => Ok(bytes),
            false => Err(ParquetError::EOF(format!("a page of {length} bytes ends after {}", bytes.len()))),
        }
    }
}

/// The header of a page. Reading the header fails if the page is too large.
pub(super) struct Header {
    chunk: Chunk,
    at: u64,
    /// The rest of the header, and bytes after it; `None` before the first read.
    rest: Option<Bytes>,
}

impl Read for Header {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = match &mut self.rest {
            Some(rest) => rest,
            None => {
                let (header, bytes) = self.chunk.header(self.at)?;
                if bytes > PAGE_BYTES_MAX {
                    let text = format!("a page has {bytes} bytes, expected at most {PAGE_BYTES_MAX}");
                    return Err(io::Error::other(text));
                }
                self.rest.insert(header)
            }
        };
        let got = buffer.len().min(rest.len());
        buffer[..got].copy_from_slice(&rest.split_to(got));
        Ok(got)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn source(bytes: &[u8]) -> Arc<Source> {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, bytes).unwrap();
        Arc::new(Source::open(&path).unwrap())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Checks that a read that ends within the chunk returns the bytes of the file, and that any other
        /// read fails. The window must lie within the chunk, and be no longer than the longest read or
        /// `HEADER_BYTES`, whichever is greater.
        #[test]
        fn a_chunk_is_read_in_windows(
            begin in 0u64..20_000, reads in prop::collection::vec((0u64..40_000, 0usize..30_000), 1..20),
        ) {
            let bytes: Vec<u8> = (0..50_000).map(|at| (at * 7 + at / 256) as u8).collect();
            let end = 40_000;
            let chunk = Chunk::new(source(&bytes), begin..end, 1 << 20);
            let mut largest = HEADER_BYTES;
            for (at, length) in reads {
                let (start, stop) = (begin + at, begin + at + length as u64);
                match chunk.get_bytes(start, length) {
                    Ok(got) => prop_assert_eq!(&got[..], &bytes[start as usize..stop as usize]),
                    Err(_) => prop_assert!(stop > end),
                }
                let window = chunk.inner.window.lock().unwrap();
                largest = largest.max(length as u64);
                prop_assert!(window.1.len() as u64 <= largest);
                prop_assert!(window.0 + window.1.len() as u64 <= end || window.1.is_empty());
            }
        }
    }

    #[test]
    fn a_page_that_is_too_large_is_refused() {
        let header = |bytes: u64| {
            let mut header = vec![0x15, 0, 0x15];
            let mut zigzag = bytes << 1;
            while zigzag >= 0x80 {
                header.push(zigzag as u8 | 0x80);
                zigzag >>= 7;
            }
            [&header[..], &[zigzag as u8, 0x15, 2, 0]].concat()
        };
        let read = |bytes: &[u8]| {
            let chunk = Chunk::new(source(bytes), 0..bytes.len() as u64, 1);
            let mut header = Vec::new();
            chunk.get_read(0).unwrap().read_to_end(&mut header).map(|_| header)
        };
        let fits = header(PAGE_BYTES_MAX);
        assert_eq!(read(&fits).unwrap(), fits);
        let error = read(&header(PAGE_BYTES_MAX + 1)).unwrap_err().to_string();
        assert_eq!(error, "a page has 536870913 bytes, expected at most 536870912");
        assert!(read(&fits[..4]).unwrap_err().to_string().contains("incomplete or damaged"));
    }
}
