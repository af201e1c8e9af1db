//! Tests valid and damaged CIFAR-10 files, and the real data set if it is present.

use std::path::PathBuf;

use proptest::prelude::*;
use pushpull_messages::input::DatasetSpec;
use tempfile::TempDir;

use super::*;
use crate::Description;
use crate::tests::damaged::{bad_inputs, gzip, write};

fn load(files: &[PathBuf]) -> Result<InMemory, InputError> {
    crate::load(&DatasetSpec::Cifar10 { files: files.to_vec() }, None)
}

fn describe(files: &[PathBuf]) -> Result<Description, InputError> {
    crate::tests::describe(&DatasetSpec::Cifar10 { files: files.to_vec() }, &[])
}

/// Returns the bytes of one record for each label. A pixel's value depends on its position, its channel and
/// the label.
fn records(labels: &[u8]) -> Vec<u8> {
    let record = |&label: &u8| {
        let planes =
            (0..CHANNELS * PIXELS).map(move |at| (at / PIXELS * 80 + at % PIXELS % 61) as u8 ^ label);
        std::iter::once(label).chain(planes).collect::<Vec<u8>>()
    };
    labels.iter().flat_map(record).collect()
}

fn read_bytes(bytes: &[u8]) -> Result<InMemory, InputError> {
    let folder = TempDir::new().unwrap();
    let files = vec![write(folder.path(), "data.bin", bytes)];
    let loaded = load(&files);
    // `describe` must agree with `load`.
    match (&loaded, describe(&files)) {
        (Ok(set), Ok(described)) => {
            assert_eq!((set.len() as u64, set.columns()), (described.examples, &described.columns[..]));
        }
        (Err(_), Err(_)) => {}
        // Labels are not checked when the file size alone gives the count.
        (Err(error), Ok(_)) => assert!(error.to_string().contains("label"), "{error}"),
        (Ok(_), Err(error)) => panic!("{error}"),
    }
    loaded
}

#[test]
fn planes_become_pixels() {
    for bytes in [records(&[7, 2]), gzip(&records(&[7, 2]))] {
        let set = read_bytes(&bytes).unwrap();
        assert_eq!(set.labels(), [7, 2]);
        for (example, label) in [(0, 7), (1, 2)] {
            let image = set.pixels(example);
            for (row, column, channel) in [(0, 0, 0), (0, 1, 2), (5, 9, 1), (31, 31, 2), (31, 31, 0)] {
                let expected = (channel * 80 + (row * SIDE + column) % 61) as u8 ^ label;
                assert_eq!(image[(row * SIDE + column) * CHANNELS + channel], expected);
            }
        }
    }
}

#[test]
fn several_files_are_one_set() {
    let folder = TempDir::new().unwrap();
    let files = [
        write(folder.path(), "a", &records(&[1, 2])),
        write(folder.path(), "b", &gzip(&records(&[3]))),
        write(folder.path(), "c", &records(&[4])),
    ];
    assert_eq!(load(&files).unwrap().labels(), [1, 2, 3, 4]);
    assert_eq!(describe(&files).unwrap().examples, 4);
}

#[test]
fn bad_files_are_refused() {
    bad_inputs(&records(&[0, 9]), |bytes| read_bytes(bytes).map(drop), &[0, RECORD_BYTES]);
    let error = read_bytes(&records(&[3, 3, 10])).unwrap_err();
    assert!(
        matches!(&error, InputError::Record { record: 2, offset: 6146, problem, .. }
            if **problem == RecordError::Label { label: 10, max: 9 }),
        "{error}"
    );
    for bytes in [records(&[1, 1]), gzip(&records(&[1, 1]))] {
        assert!(read_bytes(&bytes).is_ok());
    }
    let long = [records(&[1]), vec![5; 100]].concat();
    for bytes in [gzip(&long), long] {
        let error = read_bytes(&bytes).unwrap_err();
        assert!(matches!(&error, InputError::Record { record: 1, offset: 3073, .. }), "{error}");
        assert!(error.to_string().contains("data.bin") && error.to_string().contains("got 100"), "{error}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(len in 0usize..3, rest in 0usize..3074, byte: u8, pack: bool) {
        let bytes = vec![byte; len * RECORD_BYTES + rest];
        let read = read_bytes(&if pack { gzip(&bytes) } else { bytes.clone() });
        let good = !bytes.is_empty() && bytes.len() % RECORD_BYTES == 0 && byte <= 9;
        prop_assert_eq!(read.is_ok(), good);
    }
}

#[test]
fn reads_the_real_cifar10() {
    let Some(folder) = crate::tests::damaged::data_dir("cifar10") else { return };
    for (file, examples, histogram) in [
        ("train.bin", 7728, [779, 742, 771, 747, 822, 751, 776, 768, 794, 778]),
        ("test.bin", 1000, [103, 89, 100, 103, 90, 86, 112, 102, 106, 109]),
    ] {
        let files = [folder.join(file)];
        assert_eq!(describe(&files).unwrap().examples, examples);
        let set = load(&files).unwrap();
        let count = |class| set.labels().iter().filter(|&&label| label == class).count();
        assert_eq!(std::array::from_fn(|class| count(class as i32)), histogram);
    }
}
