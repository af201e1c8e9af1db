//! Tests valid and damaged IDX files.

use std::fs;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::unpacked::CHUNK_BYTES;

fn idx(extents: &[u32], data: &[u8]) -> Vec<u8> {
    let mut bytes = (MAGIC_U8 + extents.len() as u32).to_be_bytes().to_vec();
    bytes.extend(extents.iter().flat_map(|extent| extent.to_be_bytes()));
    bytes.extend_from_slice(data);
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::best());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

fn read(bytes: &[u8]) -> Result<(Vec<u32>, Vec<u8>), InputError> {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("some-idx");
    fs::write(&path, bytes).unwrap();
    let file = IdxFile::open(&path)?;
    Ok((file.extents().to_vec(), file.read()?))
}

/// Checks that a file with these bytes is refused with the same kind of error whether it is plain or
/// gzipped. Returns the error for the gzipped file.
fn refused(bytes: &[u8]) -> InputError {
    let plain = read(bytes).unwrap_err();
    let packed = read(&gzip(bytes)).unwrap_err();
    assert_eq!(std::mem::discriminant(&plain), std::mem::discriminant(&packed), "{plain} / {packed}");
    packed
}

proptest! {
    #[test]
    fn reads_what_was_written(count in 1u32..5, rows in 1u32..4, columns in 1u32..4, pixel: u8) {
        let data: Vec<u8> = (0..count * rows * columns).map(|i| pixel.wrapping_add(i as u8)).collect();
        let bytes = idx(&[count, rows, columns], &data);
        let expected = (vec![count, rows, columns], data);
        prop_assert_eq!(&read(&bytes).unwrap(), &expected);
        prop_assert_eq!(&read(&gzip(&bytes)).unwrap(), &expected);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64), header: bool, pack: bool) {
        let bytes = if header { [&[0, 0, 8, 1, 0, 0, 0][..], &bytes].concat() } else { bytes };
        match read(&if pack { gzip(&bytes) } else { bytes.clone() }) {
            Ok((extents, data)) => prop_assert_eq!(idx(&extents, &data), bytes),
            Err(error) => prop_assert!(error.to_string().lines().count() == 1, "{}", error),
        }
    }
}

#[test]
fn a_damaged_gzip_never_yields_other_data() {
    let data: Vec<u8> = (0..=255).collect();
    let packed = gzip(&idx(&[16, 16], &data));
    let checksum = packed.len() - 8;
    for at in 0..packed.len() {
        for bit in 0..8 {
            let mut damaged = packed.clone();
            damaged[at] ^= 1 << bit;
            // Some bits carry no data, such as those of the time stamp and of the padding after a block's
            // header.
            if let Ok(read) = read(&damaged) {
                assert_eq!(read, (vec![16, 16], data.clone()), "bit {bit} of byte {at}");
                assert!(at < checksum, "bit {bit} of the checksum's byte {at} was not noticed");
            }
        }
    }
}

#[test]
fn a_gzip_of_two_members_is_one_file() {
    let bytes = idx(&[6], b"pixels");
    let packed = [gzip(&bytes[..9]), gzip(&bytes[9..])].concat();
    assert_eq!(read(&packed).unwrap(), (vec![6], b"pixels".to_vec()));
}

#[test]
fn refuses_a_wrong_magic_number_and_shows_it() {
    for magic in [0x0000_0800, 0x0000_0d03, 0x0001_0803, 0xffff_ffff] {
        let error = refused(&[&u32::to_be_bytes(magic)[..], &[0, 0, 0, 1, 7]].concat());
        assert!(matches!(error, InputError::Magic { got, .. } if got == magic), "{error}");
        assert!(
            error.to_string().contains(&format!("{magic:#010x}")) && error.to_string().contains("byte 0")
        );
    }
}

#[test]
fn refuses_a_file_cut_at_any_byte() {
    let bytes = idx(&[2, 3], &[1, 2, 3, 4, 5, 6]);
    for len in 0..bytes.len() {
        let error = refused(&bytes[..len]);
        let (offset, expected, got) = match len {
            0..4 => (0, 4, len),
            4..8 => (4, 4, len - 4),
            8..12 => (8, 4, len - 8),
            _ => (12, 6, len - 12),
        };
        assert!(
            matches!(error, InputError::Truncated { offset: o, expected: e, got: g, .. }
                if (o, e, g) == (offset, expected, got as u64)),
            "{len}: {error}"
        );
    }
}

#[test]
fn refuses_a_gzip_cut_at_any_byte() {
    let packed = gzip(&idx(&[300], &(0..300).map(|i| (i * 7) as u8).collect::<Vec<_>>()));
    for len in 2..packed.len() {
        let error = read(&packed[..len]).unwrap_err();
        assert!(matches!(error, InputError::Truncated { .. } | InputError::Read { .. }), "{len}: {error}");
    }
}

#[test]
fn refuses_bytes_after_the_end() {
    let error = refused(&idx(&[2], &[1, 2, 3]));
    assert!(matches!(error, InputError::Trailing { offset: 10, .. }), "{error}");
    let garbage = [&gzip(&idx(&[2], &[1, 2]))[..], b"garbage"].concat();
    assert!(matches!(read(&garbage), Err(InputError::Read { offset: 10, .. })));
}

#[test]
fn refuses_no_examples_and_no_elements() {
    assert!(matches!(refused(&idx(&[0, 28, 28], &[])), InputError::Empty { .. }));
    assert!(matches!(refused(&idx(&[u32::MAX, 0], &[])), InputError::Empty { .. }));
}

#[test]
fn refuses_a_size_too_large_before_allocating() {
    let error = refused(&idx(&[u32::MAX; 255], &[0; 100]));
    assert!(matches!(error, InputError::TooLarge { max: UNPACKED_BYTES_MAX, .. }), "{error}");
    // The file itself is as large as its header says, but too large for memory.
    let (folder, extents) = (TempDir::new().unwrap(), [1 << 16, 1 << 16, 2]);
    let path = folder.path().join("large");
    fs::write(&path, idx(&extents, &[])).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(16 + (2 << 32)).unwrap();
    let error = IdxFile::open(&path).unwrap().read().unwrap_err();
    assert!(matches!(error, InputError::TooLarge { max: UNPACKED_BYTES_MAX, .. }), "{error}");
    // No compression ratio could unpack the file to this size.
    let error = refused(&idx(&[4 << 20, 28, 28], &[0; 100]));
    assert!(matches!(error, InputError::Truncated { offset: 16, expected: 0xc400_0000, .. }), "{error}");
}

#[test]
fn memory_grows_only_with_the_data_that_arrives() {
    let gibibytes = (UNPACKED_BYTES_MAX - 1) as usize;
    for arrived in [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 5 * CHUNK_BYTES] {
        let mut data = Vec::new();
        let error = read_exactly(&mut io::repeat(9).take(arrived as u64), gibibytes, &mut data).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(data.len(), arrived);
        assert!(data.capacity() <= 2 * arrived + CHUNK_BYTES, "{} for {arrived}", data.capacity());
    }
}

#[test]
fn a_gzip_bomb_is_unpacked_only_to_its_declared_size() {
    let mut bomb = idx(&[3], &[1, 2, 3]);
    bomb.resize(64 << 20, 0);
    let error = read(&gzip(&bomb)).unwrap_err();
    assert!(matches!(error, InputError::Trailing { offset: 11, .. }), "{error}");
}

#[test]
fn finds_the_twin_with_or_without_gz() {
    let folder = TempDir::new().unwrap();
    let (plain, packed) =
        (folder.path().join("labels-idx1-ubyte"), folder.path().join("labels-idx1-ubyte.gz"));
    let error = IdxFile::open(&plain).unwrap_err();
    assert!(
        matches!(&error, InputError::Missing { file, twins } if *file == plain && twins.starts_with(&packed.display().to_string())),
        "{error}"
    );
    assert!(
        matches!(IdxFile::open(&packed), Err(InputError::Missing { twins, .. }) if twins == plain.display().to_string())
    );

    fs::write(&packed, gzip(&idx(&[3], &[1, 2, 3]))).unwrap();
    assert_eq!(IdxFile::open(&plain).unwrap().examples(), 3);
    fs::write(&plain, idx(&[2], &[1, 2])).unwrap();
    assert_eq!(IdxFile::open(&plain).unwrap().examples(), 2);
    fs::remove_file(&packed).unwrap();
    // A gzip is recognised by its first bytes, not by its name.
    assert_eq!(IdxFile::open(&packed).unwrap().examples(), 2);
}

#[test]
fn counting_does_not_read_the_data() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("images");
    let data: Vec<u8> = (0..200_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut packed = gzip(&idx(&[2000, 100], &data));
    packed.truncate(packed.len() / 2);
    fs::write(&path, packed).unwrap();
    assert_eq!(IdxFile::open(&path).unwrap().examples(), 2000);
    assert!(matches!(IdxFile::open(&path).unwrap().read(), Err(InputError::Truncated { .. })));
}

#[test]
fn a_directory_is_refused() {
    let folder = TempDir::new().unwrap();
    assert!(matches!(IdxFile::open(folder.path()), Err(InputError::Read { offset: 0, .. })));
}
