//! Tests with records written by TensorFlow, damaged records, and records written by pushpull's own writer.

use std::path::PathBuf;

use proptest::prelude::*;
use pushpull_messages::input::{DatasetSpec, FeatureKind, FeatureSpec, TfRecordSpec};
use pushpull_storage::record::{RECORD_BYTES_MAX, masked_crc32c};
use tempfile::TempDir;

use super::records::Records;
use super::*;
use crate::tests::damaged::{bad_inputs, gzip, write};
use crate::tests::describe;
use crate::{Column, InMemory, InputError, RecordError, load};

const FIVE: &[u8] = include_bytes!("testdata/five.tfrecord");
const FIVE_GZ: &[u8] = include_bytes!("testdata/five.tfrecord.gz");
const RAW: &[u8] = include_bytes!("testdata/raw.tfrecord");

fn features() -> Vec<FeatureSpec> {
    vec![
        FeatureSpec::new("floats", "features", FeatureKind::Float, [3, 1]),
        FeatureSpec::new("label", "labels", FeatureKind::Int64, []),
        FeatureSpec::new("ints", "ints", FeatureKind::Int64, [2]),
        FeatureSpec::new("bytes", "image", FeatureKind::Pixels, [2, 2]),
        FeatureSpec::new("bytes", "raw", FeatureKind::Bytes, [4]),
    ]
}

fn read_with(features: Vec<FeatureSpec>, bytes: &[u8]) -> Result<InMemory, InputError> {
    let folder = TempDir::new().unwrap();
    let files = vec![write(folder.path(), "data.tfrecord", bytes)];
    let spec = DatasetSpec::TfRecord(TfRecordSpec { files, features });
    let loaded = load(&spec, None);
    // `describe` must agree with `load`.
    match (&loaded, describe(&spec, &[])) {
        (Ok(set), Ok(described)) => {
            assert_eq!((set.len() as u64, set.columns()), (described.examples, &described.columns[..]));
        }
        (Err(error), Err(same)) => assert_eq!(error.to_string(), same.to_string()),
        other => panic!("{other:?}"),
    }
    loaded
}

fn problem(features: Vec<FeatureSpec>, bytes: &[u8]) -> (u64, u64, RecordError) {
    match read_with(features, bytes).unwrap_err() {
        InputError::Record { file, record, offset, problem } => {
            assert!(file.ends_with("data.tfrecord"));
            (record, offset, *problem)
        }
        other => panic!("{other}"),
    }
}

/// Returns the example that `testdata/generate.py` writes at this index of `five.tfrecord`.
fn five(index: i64) -> Example {
    Example::new()
        .ints("label", [index % 3])
        .floats("floats", [index as f32 + 0.5, -1.25, 1e-30])
        .ints("ints", [index, -index - 1])
        .bytes("bytes", [index as u8, 0, 255, 128])
        .strings("strings", vec![b"a".to_vec(), vec![], "é".into()])
}

fn written(records: &[Vec<u8>]) -> Vec<u8> {
    let mut writer = TfRecordWriter::plain(Vec::new());
    for record in records {
        writer.write(record).unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn reads_records_written_by_tensorflow() {
    for bytes in [FIVE, FIVE_GZ] {
        let set = read_with(features(), bytes).unwrap();
        let mut columns = Vec::new();
        set.fill(&[4, 0], &mut columns);
        let expected = [
            Column::F32(vec![4.5, -1.25, 1e-30, 0.5, -1.25, 1e-30]),
            Column::I32(vec![1, 0]),
            Column::I32(vec![4, -5, 0, -1]),
            Column::F32([4.0, 0.0, 255.0, 128.0, 0.0, 0.0, 255.0, 128.0].map(|byte| byte / 255.0).into()),
            Column::I32(vec![4, 0, 255, 128, 0, 0, 255, 128]),
        ];
        assert_eq!((set.len(), columns), (5, expected.into()));
    }
}

#[test]
fn writes_the_same_bytes_as_tensorflow() {
    let ours: Vec<Vec<u8>> = (0..5).map(|index| five(index).to_bytes()).collect();
    assert_eq!(written(&ours), FIVE);
    let raw = [vec![], b"one".to_vec(), (0..=255).chain(0..=255).collect()];
    assert_eq!(written(&raw), RAW);
}

#[test]
fn written_files_are_read_back() {
    let folder = TempDir::new().unwrap();
    let mut files: Vec<PathBuf> = Vec::new();
    for (name, packed) in [("a.tfrecord", false), ("b.tfrecord.gz", true)] {
        let path = folder.path().join(name);
        let mut writer = TfRecordWriter::create(&path).unwrap();
        for index in 0..3 {
            writer.write_example(&five(index)).unwrap();
        }
        writer.finish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap().starts_with(&[0x1f, 0x8b]), packed);
        files.push(path);
    }
    let set = load(&DatasetSpec::TfRecord(TfRecordSpec { files, features: features() }), None).unwrap();
    let mut columns = Vec::new();
    set.fill(&[0, 1, 2, 3, 4, 5], &mut columns);
    assert_eq!(columns[1], Column::I32(vec![0, 1, 2, 0, 1, 2]));
    let long = vec![0; RECORD_BYTES_MAX as usize + 1];
    assert!(TfRecordWriter::plain(std::io::sink()).write(&long).is_err());
}

#[test]
fn an_error_names_the_corrupt_record_and_part() {
    // Every record of the file has 130 bytes, including 12 before its data and 4 after it.
    assert_eq!(FIVE.len(), 5 * 130);
    for at in 0..FIVE.len() {
        let mut bytes = FIVE.to_vec();
        bytes[at] ^= 0x10;
        let (record, offset, problem) = problem(features(), &bytes);
        assert_eq!((record, offset), (at as u64 / 130, at as u64 / 130 * 130), "{problem}");
        let part = if at % 130 < 12 { "length" } else { "data" };
        assert!(
            matches!(&problem, RecordError::Checksum { part: named, .. } if *named == part),
            "{at}: {problem}"
        );
        assert!(problem.to_string().contains(part));
    }
}

#[test]
fn bad_files_are_refused() {
    bad_inputs(FIVE, |bytes| read_with(features(), bytes).map(drop), &[130, 260, 390, 520]);
    let (record, offset, problem) = problem(features(), &FIVE[..200]);
    assert_eq!((record, offset), (1, 130));
    assert_eq!(problem, RecordError::Short { part: "data", expected: 114, got: 58 });
    let trailing = [FIVE, b"garbage"].concat();
    let (record, offset, problem) = self::problem(features(), &trailing);
    assert_eq!((record, offset), (5, 650));
    assert!(matches!(problem, RecordError::Short { expected: 12, got: 7, .. }));
}

#[test]
fn a_declared_length_is_not_trusted() {
    let claim = |bytes: u64| {
        let length = bytes.to_le_bytes();
        [&length[..], &masked_crc32c(&length).to_le_bytes(), b"data"].concat()
    };
    for bytes in [u64::MAX, RECORD_BYTES_MAX + 1] {
        let expected = RecordError::TooLong { bytes, max: RECORD_BYTES_MAX };
        assert_eq!(problem(features(), &claim(bytes)), (0, 0, expected));
    }
    let (.., problem) = problem(features(), &claim(RECORD_BYTES_MAX));
    assert_eq!(problem, RecordError::Short { part: "data", expected: RECORD_BYTES_MAX, got: 4 });
}

#[test]
fn an_error_names_the_wrong_feature() {
    let with = |example: Example| written(&[five(0).to_bytes(), example.to_bytes()]);
    for (example, words) in [
        (Example::new(), "the record has no feature 'floats', only []:"),
        (Example::new().floats("others", [1.0]), "the record has no feature 'floats', only [others]:"),
        (five(1).floats("floats", [1.0]), "feature 'floats' has 1 floats, expected 3"),
        (
            five(1).floats("floats", [1.0, f32::NAN, 0.0]),
            "feature 'floats' has NaN at position 1, expected finite",
        ),
        (five(1).ints("floats", [1, 2, 3]), "feature 'floats' has integers, expected floats"),
        (five(1).ints("label", [1 << 31]), "feature 'label' has 2147483648, expected an integer of 32 bits"),
        (five(1).ints("label", []), "feature 'label' has 0 integers, expected 1"),
        (five(1).bytes("bytes", *b"12345"), "feature 'bytes' has 5 bytes, expected 4"),
        (five(1).strings("bytes", vec![vec![1; 4]; 2]), "feature 'bytes' has 2 strings, expected 1"),
        (five(1).floats("bytes", [0.0; 4]), "feature 'bytes' has floats, expected bytes"),
    ] {
        let (record, offset, problem) = problem(features(), &with(example));
        assert!((record, offset) == (1, 130) && problem.to_string().starts_with(words), "{problem}");
    }
    // A feature whose value has no kind: `features { feature { key: "floats" value { } } }`.
    let empty = [&[0x0a, 12, 0x0a, 10, 0x0a, 6][..], b"floats", &[0x12, 0]].concat();
    let (.., problem) = problem(features(), &written(&[empty]));
    assert!(problem.to_string().contains("'floats' has nothing, expected floats"), "{problem}");
    let (record, _, problem) = self::problem(features(), RAW);
    assert!(record == 0 && matches!(problem, RecordError::NoFeature { .. }), "{problem}");
    let (.., problem) = self::problem(features(), &written(&[b"one".to_vec()]));
    assert!(matches!(problem, RecordError::NotAnExample(_)), "{problem}");
}

proptest! {
    #[test]
    fn records_round_trip(
        records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..10), pack: bool,
    ) {
        let folder = TempDir::new().unwrap();
        let bytes = written(&records);
        let path = write(folder.path(), "x", &if pack { gzip(&bytes) } else { bytes });
        let mut reader = Records::open(&path).unwrap();
        for record in &records {
            prop_assert_eq!(reader.next().unwrap(), Some(&record[..]));
        }
        prop_assert_eq!(reader.next().unwrap(), None);
    }

    #[test]
    fn examples_round_trip(
        floats in prop::collection::vec(-1e9f32..1e9, 0..20),
        ints in prop::collection::vec(any::<i64>(), 0..20),
        strings in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..5),
        name: String,
    ) {
        let example = Example::new().floats("f", floats).ints(&name, ints).strings("s", strings);
        prop_assert_eq!(Example::from_bytes(&example.to_bytes()).unwrap(), example);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..100), framed: bool, pack: bool) {
        let bytes = if framed { written(&[bytes]) } else { bytes };
        let read = read_with(features(), &if pack { gzip(&bytes) } else { bytes });
        prop_assert_eq!(read.unwrap_err().to_string().lines().count(), 1);
    }

    /// Changes one byte of a valid example, and cuts its end off. Reading it must not panic.
    #[test]
    fn any_changed_example_is_read_or_refused(at in 0usize..114, byte: u8, cut in 0usize..115) {
        let mut bytes = five(1).to_bytes();
        bytes[at] = byte;
        bytes.truncate(cut);
        let _ = read_with(features(), &written(&[bytes]));
    }
}
