//! The bytes of a file, unpacked where it is gzipped, counted and bounded.
//! Knows no format, and trusts no size.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use super::InputError;

/// Most bytes of data that are unpacked from one file.
pub const UNPACKED_BYTES_MAX: u64 = 4 << 30;

/// How much is allocated before any data has arrived; from there on, never more than twice what has arrived.
pub(super) const CHUNK_BYTES: usize = 1 << 20;

/// Most unpacked bytes for a packed one that deflate can reach (zlib's technical details).
pub(super) const DEFLATE_RATIO_MAX: u64 = 1032;

/// What a gzip file begins with, whatever its name is. No IDX file does: those begin with two zeros.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// A file that is read once from its begin to its end. Reading fails beyond a limit, so that no packed file unpacks to
/// more than a worker is ready to hold.
pub(super) struct Unpacked {
    path: PathBuf,
    input: Box<dyn Read + Send>,
    /// Unpacked bytes that have been read.
    offset: u64,
    /// Where reading fails, and what for.
    limit: u64,
    limited: &'static str,
    /// Of a plain file that is no pipe.
    size: Option<u64>,
}

impl Unpacked {
    /// Opens `path`, or where there is no such file the same name with `.gz` added or taken away.
    pub(super) fn open(path: &Path) -> Result<Self, InputError> {
        let (path, file) = open_either(path)?;
        let metadata = file.metadata();
        let opened = metadata.and_then(|metadata| Ok((metadata, unpacked(file)?)));
        let (metadata, (input, packed)) = match opened {
            Ok(opened) => opened,
            Err(source) => return Err(InputError::Read { file: path, offset: 0, source }),
        };
        let size = (metadata.is_file() && !packed).then_some(metadata.len());
        Ok(Self { path, input, offset: 0, limit: UNPACKED_BYTES_MAX, limited: "one file", size })
    }

    /// The file that was opened, which may be the one with or without `.gz`.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// How many unpacked bytes have been read.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// How many bytes there are, where that is known before they are read.
    pub(super) fn size(&self) -> Option<u64> {
        self.size
    }

    /// From here on at most so many bytes, which are what `part` says.
    pub(super) fn limit(&mut self, bytes: u64, part: &'static str) {
        let limit = self.offset.saturating_add(bytes);
        (self.limit, self.limited) =
            if limit < UNPACKED_BYTES_MAX { (limit, part) } else { (UNPACKED_BYTES_MAX, "one file") };
    }

    /// Fills `buffer` as far as the file reaches; says how far.
    pub(super) fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, InputError> {
        read_up_to(self, buffer).map_err(|source| self.error(source))
    }

    /// Appends `expected` bytes, or what is left of the file; says how many. Room is made as data arrives.
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

    /// What went wrong, where.
    pub(super) fn error(&self, source: io::Error) -> InputError {
        InputError::Read { file: self.path.clone(), offset: self.offset, source }
    }
}

impl Read for Unpacked {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.limit - self.offset;
        // One byte more than is allowed shows whether the file goes on.
        let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX).saturating_add(1));
        let got = self.input.read(&mut buffer[..most])?;
        if got as u64 > left {
            let text = format!("more than {} bytes of {}; split it", self.limit, self.limited);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        self.offset += got as u64;
        Ok(got)
    }
}

/// Opens the file, or its twin with or without `.gz`.
pub(super) fn open_either(path: &Path) -> Result<(PathBuf, File), InputError> {
    let open = |file: PathBuf| match File::open(&file) {
        Ok(opened) => Ok(Some((file, opened))),
        Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(InputError::Read { file, offset: 0, source }),
    };
    if let Some(found) = open(path.to_path_buf())? {
        return Ok(found);
    }
    let twin = if path.extension() == Some(OsStr::new("gz")) {
        path.with_extension("")
    } else {
        let mut name = path.as_os_str().to_os_string();
        name.push(".gz");
        PathBuf::from(name)
    };
    open(twin.clone())?.ok_or_else(|| InputError::Missing { file: path.to_path_buf(), twin })
}

/// The file's unpacked bytes from its begin on, and whether it is packed.
pub(super) fn unpacked(file: File) -> io::Result<(Box<dyn Read + Send>, bool)> {
    let mut input = BufReader::new(file);
    let mut first = [0; 2];
    let got = read_up_to(&mut input, &mut first)?;
    let whole = Cursor::new(first).take(got as u64).chain(input);
    if got == 2 && first == GZIP_MAGIC {
        // The decoder asks for small pieces, and a chain hands on the buffer's rest in one.
        Ok((Box::new(BufReader::new(MultiGzDecoder::new(whole))), true))
    } else {
        Ok((Box::new(whole), false))
    }
}

/// Fills `buffer` as far as the input reaches; says how far.
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

/// Appends exactly `expected` bytes. Room is made as data arrives, so that a header that lies costs nothing.
///
/// What has arrived stays in `data` on every error; `UnexpectedEof` and `OutOfMemory` are errors of this function.
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
    fn reads_plain_and_packed_alike_and_counts() {
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
    fn stops_where_it_is_told_to() {
        let (_folder, path) = file(b"0123456789");
        let mut input = Unpacked::open(&path).unwrap();
        input.limit(10, "one row");
        assert_eq!(input.append(20, &mut Vec::new()).unwrap(), 10);
        let mut input = Unpacked::open(&path).unwrap();
        input.limit(9, "one row");
        let error = input.append(20, &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("more than 9 bytes of one row"), "{error}");
    }

    #[test]
    fn a_gzip_that_is_cut_is_an_error_and_no_end() {
        let packed = gzip(b"0123456789");
        for len in 2..packed.len() {
            let (_folder, path) = file(&packed[..len]);
            let read = Unpacked::open(&path).and_then(|mut input| input.append(20, &mut Vec::new()));
            assert!(matches!(read, Err(InputError::Read { .. })), "{len}: {read:?}");
        }
    }
}
