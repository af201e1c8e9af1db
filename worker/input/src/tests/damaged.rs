//! Fixtures for the tests of the readers: small files, and kinds of damage that every format must detect.
//! This module must not depend on formats.

use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::InputError;

/// Returns `bytes` compressed with gzip.
pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::best());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

/// Writes a file and returns its path.
pub(crate) fn write(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Checks that `read` refuses damaged versions of the valid file `good`. The plain file is emptied, replaced
/// by a file of another format, or cut to any length. The lengths in `whole` are left out, because a file
/// that is cut to one of them is still valid. A gzipped copy of the file is cut, gets a wrong checksum, or
/// is followed by other bytes.
#[track_caller]
pub(crate) fn bad_inputs(
    good: &[u8],
    mut read: impl FnMut(&[u8]) -> Result<(), InputError>,
    whole: &[usize],
) {
    let mut refused = |bytes: &[u8], what: &str| {
        let error = read(bytes).expect_err(what);
        assert_eq!(error.to_string().lines().count(), 1, "{what}: {error}");
        error
    };
    refused(b"", "empty");
    refused(&gzip(b""), "an empty gzip");
    refused(b"\x89PNG\r\n\x1a\n, no good at all", "another format");
    refused(&[0x1f, 0x8b, 8, 0, 1, 2, 3], "no gzip after its magic");
    // Long files are cut at fewer places, to save time.
    let step = |len: usize| if len <= 1000 { 1 } else { len / 50 };
    for len in (1..good.len()).step_by(step(good.len())).filter(|len| !whole.contains(len)) {
        refused(&good[..len], &format!("cut at {len}"));
        refused(&gzip(&good[..len]), &format!("cut at {len} and packed"));
    }
    let packed = gzip(good);
    for len in (2..packed.len()).step_by(step(packed.len())) {
        let error = refused(&packed[..len], &format!("a gzip cut at {len}"));
        assert!(matches!(error, InputError::Read { .. }), "a gzip cut at {len}: {error}");
    }
    refused(&[&packed, &b"rest"[..]].concat(), "a gzip followed by other bytes");
    let mut flipped = packed.clone();
    let checksum = packed.len() - 8;
    flipped[checksum] ^= 1;
    refused(&flipped, "a gzip with another checksum");
    read(good).unwrap();
    read(&packed).unwrap();
}

/// Returns the folder of a real data set; `None` if it is not present.
pub(crate) fn data_dir(name: &str) -> Option<PathBuf> {
    let data = std::env::var_os("PUSHPULL_DATA_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"), PathBuf::from);
    let folder = data.join(name);
    if !folder.is_dir() {
        eprintln!("SKIPPED: no {}: set PUSHPULL_DATA_DIR to the folder above {name}", folder.display());
        return None;
    }
    Some(folder)
}
