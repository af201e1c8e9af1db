//! Tests with damaged files: each must be read or refused, without a panic and within the limits of memory.

use std::path::Path;

use proptest::prelude::*;
use tempfile::TempDir;

use super::written::{How, bytes, columns, people, spec, table};
use super::{opened, rest};
use crate::InputError;

fn read(folder: &Path, how: How, bytes: &[u8]) -> Result<usize, InputError> {
    let path = folder.join("table");
    std::fs::write(&path, bytes).unwrap();
    let set = opened(&spec(how, vec![path]), 0)?;
    let _ = set.examples();
    let mut rows = set.rows()?;
    // A row that is skipped is decoded less strictly.
    let mut reader = set.reader()?;
    reader.skip(3, &mut rows)?;
    Ok(rest(&*set, 0, 7)?.len())
}

#[test]
fn a_file_that_is_cut_anywhere_is_refused() {
    let folder = TempDir::new().unwrap();
    for how in How::all() {
        let whole = bytes(&table(&people(9)), how, 4);
        assert_eq!(read(folder.path(), how, &whole).unwrap(), 9);
        for end in (0..whole.len()).step_by(37).chain(whole.len() - 20..whole.len()) {
            let error = read(folder.path(), how, &whole[..end]).unwrap_err().to_string();
            assert_eq!(error.lines().count(), 1, "{how:?} {end}: {error}");
            assert!(error.contains("table"), "{how:?} {end}: {error}");
        }
        let more = [&whole[..], b"more"].concat();
        read(folder.path(), how, &more).unwrap_err();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Flips one to three bits, anywhere in the file or in its last third, where Parquet has its footer. The
    /// reader must not panic, and an error must have one line.
    #[test]
    fn any_flipped_bits_are_read_or_refused(
        how: How, flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..4), at_end: bool,
    ) {
        let folder = TempDir::new().unwrap();
        let mut bytes = bytes(&table(&people(9)), how, 4);
        let begin = if at_end { bytes.len() - bytes.len() / 3 } else { 0 };
        for (index, bit) in flips {
            let at = begin + index.index(bytes.len() - begin);
            bytes[at] ^= 1 << bit;
        }
        if let Err(error) = read(folder.path(), how, &bytes) {
            prop_assert_eq!(error.to_string().lines().count(), 1);
        }
    }

    #[test]
    fn any_bytes_between_magic_ones_are_refused(how: How, middle in prop::collection::vec(any::<u8>(), 0..200)) {
        let folder = TempDir::new().unwrap();
        let length = (middle.len() as u32).to_le_bytes();
        let whole = match how {
            How::Parquet { .. } => [b"PAR1", &middle[..], &length, b"PAR1"].concat(),
            How::Arrow { is_file, .. } => {
                let magic = if is_file { &b"ARROW1\0\0"[..] } else { b"" };
                [magic, &[0xff; 4], &length, &middle].concat()
            }
        };
        prop_assert!(read(folder.path(), how, &whole).is_err());
    }
}

#[test]
fn a_stream_without_an_end_mark_is_refused() {
    let folder = TempDir::new().unwrap();
    let how = How::Arrow { is_file: false, compression: None };
    let whole = bytes(&table(&people(9)), how, 4);
    assert_eq!(whole[whole.len() - 8..], [255, 255, 255, 255, 0, 0, 0, 0]);
    let error = read(folder.path(), how, &whole[..whole.len() - 8]).unwrap_err().to_string();
    assert!(error.contains("the file ends without an end mark"), "{error}");
    let error = read(folder.path(), how, &whole[..whole.len() - 5]).unwrap_err().to_string();
    assert!(error.contains("the file ends inside the head of a message"), "{error}");
}

/// Makes a word of a dictionary invalid UTF-8. This must be an error only if `label`, the column with the
/// words, is read.
#[test]
fn a_dictionary_that_is_not_named_is_not_decoded() {
    let folder = TempDir::new().unwrap();
    let mut bytes = bytes(&table(&people(9)), How::FILE, 4);
    let at = bytes.windows(6).position(|window| window == b"word 0").unwrap();
    bytes[at] = 0xff;
    read(folder.path(), How::FILE, &bytes).unwrap_err();
    let (with, without): (Vec<_>, Vec<_>) = columns().into_iter().partition(|column| column.name == "label");
    for (columns, works) in [(with, false), (without, true)] {
        let set = How::FILE.spec(vec![folder.path().join("table")], columns);
        assert_eq!(opened(&set, 0).and_then(|set| rest(&*set, 0, 7)).is_ok(), works);
    }
}

/// Makes a record batch declare a buffer that would take 1 TiB of memory when it is unpacked.
#[test]
fn a_packed_batch_with_a_large_buffer_is_refused() {
    let folder = TempDir::new().unwrap();
    for how in How::all() {
        let How::Arrow { compression: Some(_), .. } = how else { continue };
        let mut bytes = bytes(&table(&people(200)), how, 200);
        // The numbers 0, 1000, 2000 .. are packed behind the number of their bytes.
        let size = (200 * 4i64).to_le_bytes();
        let at = bytes.windows(8).rposition(|window| window == size).unwrap();
        bytes[at..at + 8].copy_from_slice(&(1i64 << 40).to_le_bytes());
        let error = read(folder.path(), how, &bytes).unwrap_err().to_string();
        assert!(error.contains("when it is unpacked, expected at most "), "{error}");
    }
}
