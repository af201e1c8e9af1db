//! A short description of files, by which a task notices that they have changed. This module does not read
//! files.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// A short description of the files that a worker reads: their number, their size and a checksum. Files with
/// different names or sizes have different descriptions, except in the rare case that their checksums are
/// equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilesDigest {
    /// The number of files.
    pub files: u64,
    /// The number of bytes of all files together. A pipe counts as 0 bytes.
    pub bytes: u64,
    /// The CRC-32C of the names and sizes, in order. A name does not include the directory, because each
    /// host may keep the files in a different directory.
    pub crc32c: u32,
}

impl FilesDigest {
    /// Adds a file of `bytes` bytes.
    pub fn add(&mut self, file: &Path, bytes: u64) {
        let name = file.file_name().unwrap_or_default().as_encoded_bytes();
        let crc32c = crc32c::crc32c_append(self.crc32c, name);
        // A file name contains no zero byte, so a zero byte separates each name from the file's size.
        self.crc32c = crc32c::crc32c_append(crc32c::crc32c_append(crc32c, &[0]), &bytes.to_le_bytes());
        self.files += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

impl fmt::Display for FilesDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { files, bytes, crc32c } = self;
        write!(f, "{files} file(s) of {bytes} bytes in all ({crc32c:08x})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(files: &[(&str, u64)]) -> FilesDigest {
        let mut digest = FilesDigest::default();
        files.iter().for_each(|(file, bytes)| digest.add(Path::new(file), *bytes));
        digest
    }

    #[test]
    fn names_sizes_and_order_change_a_digest() {
        let one = digest(&[("/data/a", 3), ("/data/b", 4)]);
        assert_eq!(one, digest(&[("elsewhere/a", 3), ("b", 4)]));
        assert_eq!((one.files, one.bytes), (2, 7));
        for other in [&[("b", 4), ("a", 3)][..], &[("a", 4), ("b", 3)], &[("a", 3), ("c", 4)], &[("a", 3)]] {
            assert_ne!(one, digest(other), "{other:?}");
        }
        assert!(one.to_string().starts_with("2 file(s) of 7 bytes in all ("), "{one}");
    }
}
