//! The bytes of a file, unpacked if the file is packed with gzip or zstd. The bytes are counted, and their
//! number is limited. This module must not depend on formats, or rely on a size that a file declares.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use crate::InputError;
use crate::object::Address;
use crate::zstd::{ZstdReader, is_zstd};

/// The maximum unpacked size, in bytes, of one file that is held in memory as a whole.
pub const UNPACKED_BYTES_MAX: u64 = 4 << 30;

/// The number of bytes allocated before any data has arrived. After that, the allocated size is at most
/// twice the size of the data that has arrived.
pub(super) const CHUNK_BYTES: usize = 1 << 20;

/// The maximum ratio of unpacked to packed bytes that deflate can reach (zlib's technical details).
const DEFLATE_RATIO_MAX: u64 = 1032;

/// The endings of the names of packed files.
const PACKED: [&str; 2] = ["gz", "zst"];

/// The number of bytes that are read from a file at a time.
const BUFFER_BYTES: usize = 1 << 16;

/// The first bytes of a gzip file. A file is recognised by these bytes and not by its name. An IDX file
/// begins with two zero bytes, so the two formats cannot be confused.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// A file or an object that is read once, from start to end. Reading fails beyond a limit that a caller sets,
/// because a small packed file could otherwise fill the memory of a worker.
pub(super) struct Unpacked {
    path: PathBuf,
    input: Box<dyn Read + Send>,
    /// The number of unpacked bytes that have been read.
    offset: u64,
    /// The offset beyond which reading fails, in unpacked bytes.
    limit: u64,
    /// The name of what the limit applies to, such as `one row`, for the error.
    limited: &'static str,
    /// The size of a plain file; `None` for a packed file or a pipe.
    size: Option<u64>,
}

impl Unpacked {
    /// Opens `path`. If `path` does not exist, opens the file with `.gz` or `.zst` added to its name, or
    /// removed from it.
    ///
    /// # Errors
    /// [`InputError::Missing`] if neither file exists; [`InputError::Read`] if the file cannot be opened or
    /// read.
    pub(super) fn open(path: &Path) -> Result<Self, InputError> {
        let Opened { path, input, size } = open_either(path)?;
        let (input, packing) = match unpacked(input) {
            Ok(opened) => opened,
            Err(source) => return Err(InputError::Read { file: path, offset: 0, source }),
        };
        let size = size.filter(|_| packing == Packing::Plain);
        Ok(Self { path, input, offset: 0, limit: u64::MAX, limited: "one file", size })
    }

    /// Returns the path of the opened file. Its ending may differ from that of the requested path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of unpacked bytes that have been read.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the number of unpacked bytes of the whole file; `None` if this number is unknown before the
    /// file is read.
    pub(super) fn size(&self) -> Option<u64> {
        self.size
    }

    /// Limits reading to `bytes` more bytes. `part` is the name that an error gives to these bytes.
    pub(super) fn limit(&mut self, bytes: u64, part: &'static str) {
        (self.limit, self.limited) = (self.offset.saturating_add(bytes), part);
    }

    /// Reads until `buffer` is full or the file ends. Returns the number of bytes read.
    pub(super) fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, InputError> {
        read_up_to(self, buffer).map_err(|source| self.error(source))
    }

    /// Appends `expected` bytes to `data`, or fewer if the file ends earlier. Returns the number of bytes
    /// appended. Allocates memory as data arrives.
    pub(super) fn append(&mut self, expected: usize, data: &mut Vec<u8>) -> Result<usize, InputError> {
        let mut added = 0;
        while added < expected {
            let step = (expected - added).min(added.max(CHUNK_BYTES));
            if data.try_reserve(step).is_err() {
                return Err(InputError::Memory { file: self.path.clone(), bytes: step });
            }
            let got = self.by_ref().take(step as u64).read_to_end(data);
            let got = got.map_err(|source| self.error(source))?;
            added += got;
            if got < step {
                break;
            }
        }
        Ok(added)
    }

    /// Reads `expected` bytes and drops them; fewer if the file ends earlier. Returns the number of bytes
    /// dropped.
    pub(super) fn discard(&mut self, expected: usize) -> Result<usize, InputError> {
        let mut buffer = [0; 1 << 12];
        let mut dropped = 0;
        while dropped < expected {
            let step = (expected - dropped).min(buffer.len());
            let got = self.fill(&mut buffer[..step])?;
            dropped += got;
            if got < step {
                break;
            }
        }
        Ok(dropped)
    }

    /// Returns an error that names the file and the current offset.
    pub(super) fn error(&self, source: io::Error) -> InputError {
        InputError::Read { file: self.path.clone(), offset: self.offset, source }
    }
}

impl Read for Unpacked {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.limit - self.offset;
        // Reading one byte more than the limit shows whether the file continues.
        let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX).saturating_add(1));
        let got = self.input.read(&mut buffer[..most])?;
        if got as u64 > left {
            let text = format!(
                "the data continues beyond byte {}, the limit of {}: split it",
                self.limit, self.limited
            );
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        self.offset += got as u64;
        Ok(got)
    }
}

/// A file or an object that was opened. Its bytes may be packed.
pub(crate) struct Opened {
    /// The path of the file, or the address of the object.
    pub path: PathBuf,
    pub input: Box<dyn Read + Send>,
    /// The size of the file or object before unpacking, in bytes; `None` for a pipe.
    pub size: Option<u64>,
}

impl Opened {
    fn new(path: &Path) -> io::Result<Self> {
        let (input, size): (Box<dyn Read + Send>, _) = match Address::of(path) {
            Some(address) => {
                let (pieces, size) = address.open()?;
                (Box::new(pieces), Some(size))
            }
            None => {
                let file = File::open(path)?;
                let metadata = file.metadata()?;
                (Box::new(file), metadata.is_file().then_some(metadata.len()))
            }
        };
        Ok(Self { path: path.to_path_buf(), input, size })
    }
}

/// Opens a file or an object. If `path` does not exist, opens the file or object with `.gz` or `.zst` added
/// to its name, or removed from it.
pub(crate) fn open_either(path: &Path) -> Result<Opened, InputError> {
    either(path, Opened::new)
}

/// Returns the number of bytes of the file or object that [`open_either`] opens; `None` for a pipe, which is
/// not opened.
pub(crate) fn size_either(path: &Path) -> Result<Option<u64>, InputError> {
    either(path, |path| match Address::of(path) {
        Some(address) => address.size().map(Some),
        None => {
            let metadata = std::fs::metadata(path)?;
            // Opened as a check, because otherwise a file that cannot be opened is reported only when the
            // job reads it.
            match metadata.is_file() {
                true => File::open(path).map(|_| Some(metadata.len())),
                false => Ok(None),
            }
        }
    })
}

/// Calls `act` with `path`. If there is no such file, calls `act` with the same path after `.gz` or `.zst`
/// has been added to it, or removed from it.
fn either<T>(path: &Path, act: impl Fn(&Path) -> io::Result<T>) -> Result<T, InputError> {
    let open = |file: PathBuf| match act(&file) {
        Ok(opened) => Ok(Some(opened)),
        Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(InputError::Read { file, offset: 0, source }),
    };
    let packed = path.extension().is_some_and(|extension| PACKED.iter().any(|packed| extension == *packed));
    let twins = match packed {
        true => vec![path.with_extension("")],
        false => {
            PACKED.iter().map(|extension| PathBuf::from(format!("{}.{extension}", path.display()))).collect()
        }
    };
    for file in std::iter::once(path.to_path_buf()).chain(twins.iter().cloned()) {
        if let Some(found) = open(file)? {
            return Ok(found);
        }
    }
    let twins = twins.iter().map(|twin| twin.display().to_string()).collect::<Vec<_>>().join(" and ");
    Err(InputError::Missing { file: path.to_path_buf(), twins })
}

/// How a file is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    Plain,
    Gzip,
    Zstd,
}

impl Packing {
    /// Returns the maximum number of unpacked bytes for each byte of the file; `None` if there is no useful
    /// maximum.
    pub(super) const fn ratio_max(self) -> Option<u64> {
        match self {
            Self::Plain => Some(1),
            Self::Gzip => Some(DEFLATE_RATIO_MAX),
            Self::Zstd => None,
        }
    }
}

/// Returns a reader of the file's unpacked bytes, and how the file is packed.
pub(super) fn unpacked(file: impl Read + Send + 'static) -> io::Result<(Box<dyn Read + Send>, Packing)> {
    let mut input = BufReader::with_capacity(BUFFER_BYTES, file);
    let mut first = [0; 4];
    let got = read_up_to(&mut input, &mut first)?;
    let whole = Cursor::new(first).take(got as u64).chain(input);
    // The decoders' output is buffered because callers read small pieces. A plain file is buffered already.
    if got >= 2 && first[..2] == GZIP_MAGIC {
        Ok((Box::new(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(whole))), Packing::Gzip))
    } else if got == 4 && is_zstd(first) {
        Ok((Box::new(BufReader::with_capacity(BUFFER_BYTES, ZstdReader::new(whole))), Packing::Zstd))
    } else {
        Ok((Box::new(whole), Packing::Plain))
    }
}

/// Reads until `buffer` is full or the input ends. Returns the number of bytes read.
pub(super) fn read_up_to(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match input.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(got) => filled += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Reads until `data` contains exactly `expected` bytes. Allocates memory as data arrives, so a header that
/// declares too many bytes costs no memory.
///
/// On an error, `data` contains the bytes that arrived. The error kind `UnexpectedEof` means that the input
/// is too short, and `OutOfMemory` that no memory was left. Other errors come from the input.
pub(super) fn read_exactly(input: &mut impl Read, expected: usize, data: &mut Vec<u8>) -> io::Result<()> {
    while data.len() < expected {
        let step = (expected - data.len()).min(data.len().max(CHUNK_BYTES));
        data.try_reserve_exact(step).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        if input.by_ref().take(step as u64).read_to_end(data)? < step {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn file(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, bytes).unwrap();
        (folder, path)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut packer = GzEncoder::new(Vec::new(), Compression::best());
        packer.write_all(bytes).unwrap();
        packer.finish().unwrap()
    }

    #[test]
    fn reads_and_counts_plain_and_gzipped_bytes() {
        for bytes in [b"0123456789".to_vec(), gzip(b"0123456789")] {
            let (_folder, path) = file(&bytes);
            let mut input = Unpacked::open(&path).unwrap();
            assert_eq!(input.size(), (bytes[0] == b'0').then_some(10));
            let mut data = b"x".to_vec();
            assert_eq!((input.append(4, &mut data).unwrap(), input.offset()), (4, 4));
            assert_eq!((input.append(20, &mut data).unwrap(), input.offset()), (6, 10));
            assert_eq!(data, b"x0123456789");
            assert_eq!(input.append(1, &mut data).unwrap(), 0);
        }
    }

    #[test]
    fn reading_beyond_the_limit_fails() {
        let (_folder, path) = file(b"0123456789");
        let mut input = Unpacked::open(&path).unwrap();
        input.limit(10, "one row");
        assert_eq!(input.append(20, &mut Vec::new()).unwrap(), 10);
        let mut input = Unpacked::open(&path).unwrap();
        input.limit(9, "one row");
        let error = input.append(20, &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("beyond byte 9, the limit of one row"), "{error}");
    }

    #[test]
    fn a_cut_gzip_is_an_error() {
        let packed = gzip(b"0123456789");
        for len in 2..packed.len() {
            let (_folder, path) = file(&packed[..len]);
            let read = Unpacked::open(&path).and_then(|mut input| input.append(20, &mut Vec::new()));
            assert!(matches!(read, Err(InputError::Read { .. })), "{len}: {read:?}");
        }
    }
}
