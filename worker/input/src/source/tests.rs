//! Tests data sets loaded from specs: small files that the tests write, and the real MNIST if it is present.

use std::fs;
use std::path::PathBuf;

use pushpull_messages::input::StageSpec;
use tempfile::TempDir;

use super::*;
use crate::tests::damaged::data_dir;
use crate::tests::describe;

fn write_pair(folder: &Path, images: u32, labels: u32) -> DatasetSpec {
    let header = |magic: u32, extents: &[u32]| {
        [magic].iter().chain(extents).flat_map(|number| number.to_be_bytes()).collect::<Vec<u8>>()
    };
    let pixels = (0..images * 6).map(|i| i as u8).collect::<Vec<u8>>();
    fs::write(folder.join("images"), [header(0x803, &[images, 2, 3]), pixels].concat()).unwrap();
    fs::write(folder.join("labels"), [header(0x801, &[labels]), (0..labels as u8).rev().collect()].concat())
        .unwrap();
    DatasetSpec::Idx { images: folder.join("images"), labels: folder.join("labels") }
}

#[test]
fn loads_images_with_their_labels() {
    let folder = TempDir::new().unwrap();
    let spec = write_pair(folder.path(), 4, 4);
    let set = load(&spec, None).unwrap();
    assert_eq!((set.len(), set.feature_shape()), (4, &Shape::from([2, 3])));
    assert_eq!(set.labels(), [3, 2, 1, 0]);
    assert_eq!(set.pixels(1), [6, 7, 8, 9, 10, 11]);
    assert_eq!(describe(&spec, &[]).unwrap(), Description { examples: 4, columns: set.columns().to_vec() });
}

#[test]
fn images_are_the_same_without_their_labels() {
    let folder = TempDir::new().unwrap();
    let both = load(&write_pair(folder.path(), 4, 4), None).unwrap();
    let images = load_images(&folder.path().join("images")).unwrap();
    assert_eq!((images.len(), images.columns()), (4, &both.columns()[..1]));
    assert!(images.storage("features") == both.storage("features"), "the same pixels");
    let error = load_images(&folder.path().join("labels")).unwrap_err();
    assert!(matches!(error, InputError::Magic { .. }), "{error}");
}

#[test]
fn another_directory_replaces_the_one_in_the_spec() {
    let folder = TempDir::new().unwrap();
    write_pair(folder.path(), 2, 2);
    let elsewhere = DatasetSpec::Idx { images: "/no/such/images".into(), labels: "relative/labels".into() };
    assert_eq!(load(&elsewhere, Some(folder.path())).unwrap().len(), 2);
    assert!(
        matches!(load(&elsewhere, None), Err(InputError::Missing { file, .. }) if file.starts_with("/no/such"))
    );

    let nameless = DatasetSpec::Idx { images: "/".into(), labels: "labels".into() };
    assert!(matches!(load(&nameless, Some(folder.path())), Err(InputError::NoFileName { .. })));
}

#[test]
fn refuses_two_files_that_would_have_one_path() {
    let cifar = |files: &[&str]| DatasetSpec::Cifar10 { files: files.iter().map(PathBuf::from).collect() };
    let both = |train: &[&str], test: &[&str]| InputSpec::new(cifar(train), cifar(test));
    let data = Path::new("/data");
    let error = in_directory(&cifar(&["a/part-0", "a/part-1", "b/part-0"]), data).unwrap_err().to_string();
    assert!(error.starts_with("a/part-0 and b/part-0 would both be /data/part-0"), "{error}");
    let error = load(&cifar(&["a/part-0", "b/part-0"]), Some(data)).unwrap_err();
    assert!(matches!(error, InputError::SameFile { .. }), "{error}");

    let error = input_in_directory(&both(&["train/data.bin"], &["test/data.bin"]), data).unwrap_err();
    let message = error.to_string();
    assert!(
        message.starts_with("train/data.bin and test/data.bin would both be /data/data.bin"),
        "{message}"
    );
    // Both sets name the same file, so it is moved twice.
    let same = input_in_directory(&both(&["x/a", "x/b"], &["x/a"]), data).unwrap();
    assert_eq!(same, both(&["/data/a", "/data/b"], &["/data/a"]));
    assert_eq!(input_in_directory(&same, data).unwrap(), same);
}

#[test]
fn describing_refuses_an_integer_that_is_not_a_class() {
    let folder = TempDir::new().unwrap();
    let spec = write_pair(folder.path(), 4, 4);
    let one_hot = |classes| [MapSpec::new("labels", StageSpec::OneHot { classes })];
    let error = describe(&spec, &one_hot(3)).unwrap_err();
    assert!(matches!(error, InputError::Class { example: 0, id: 3, classes: 3, .. }), "{error}");
    let described = describe(&spec, &one_hot(4)).unwrap();
    assert_eq!(described.columns[1].example.shape, Shape::from([4]));
}

#[test]
fn refuses_images_and_labels_that_do_not_match() {
    let folder = TempDir::new().unwrap();
    let spec = write_pair(folder.path(), 4, 3);
    let error = load(&spec, None).unwrap_err();
    assert!(matches!(error, InputError::CountMismatch { image_count: 4, label_count: 3, .. }), "{error}");

    let DatasetSpec::Idx { images, labels } = write_pair(folder.path(), 4, 4) else { unreachable!() };
    let swapped = DatasetSpec::Idx { images: labels, labels: images };
    assert!(matches!(load(&swapped, None), Err(InputError::Magic { got: 0x801, .. })));
}

#[test]
fn digits_are_drawn() {
    let spec = DatasetSpec::Digits { seed: 5, examples: 12 };
    let set = load(&spec, Some(Path::new("/ignored"))).unwrap();
    assert_eq!((set.len(), set.feature_shape()), (12, &Shape::from([28, 28])));
    assert_eq!(describe(&spec, &[]).unwrap().examples, 12);
    let endless = DatasetSpec::Digits { seed: 5, examples: u64::MAX };
    assert!(matches!(load(&endless, None), Err(InputError::Extent { examples: u64::MAX, .. })));
    assert!(matches!(describe(&endless, &[]), Err(InputError::Extent { .. })));
}

/// The known facts about the training set or the test set of MNIST.
struct Known {
    name: &'static str,
    examples: u64,
    first_labels: [i32; 10],
    mean_pixel: f64,
    histogram: [usize; 10],
}

#[test]
fn reads_the_real_mnist() {
    let Some(folder) = data_dir("mnist") else { return };
    // These facts are from shared/data/README.md.
    let known = [
        Known {
            name: "train",
            examples: 60_000,
            first_labels: [5, 0, 4, 1, 9, 2, 1, 3, 1, 4],
            mean_pixel: 0.130_660,
            histogram: [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
        },
        Known {
            name: "t10k",
            examples: 10_000,
            first_labels: [7, 2, 1, 0, 4, 1, 4, 9, 5, 9],
            mean_pixel: 0.132_515,
            histogram: [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
        },
    ];
    for Known { name, examples, first_labels, mean_pixel, histogram } in known {
        // The spec names the files without `.gz`, although they are gzipped.
        let spec = DatasetSpec::Idx {
            images: format!("{name}-images-idx3-ubyte").into(),
            labels: format!("{name}-labels-idx1-ubyte").into(),
        };
        assert_eq!(describe(&in_directory(&spec, &folder).unwrap(), &[]).unwrap().examples, examples);
        let set = load(&spec, Some(&folder)).unwrap();
        assert_eq!((set.len() as u64, set.feature_shape()), (examples, &Shape::from([28, 28])));
        assert_eq!(set.labels()[..10], first_labels);
        let counted: Vec<usize> =
            (0..10).map(|class| set.labels().iter().filter(|&&l| l == class).count()).collect();
        assert_eq!(counted, histogram);
        let sum: u64 =
            (0..set.len() as u32).flat_map(|example| set.pixels(example)).map(|&p| u64::from(p)).sum();
        assert!(
            (sum as f64 / 255.0 / (examples * 784) as f64 - mean_pixel).abs() < 5e-7,
            "mean pixel of {name}"
        );
    }
}

#[cfg(not(feature = "columnar"))]
#[test]
fn tables_need_a_program_with_the_feature() {
    use pushpull_messages::input::{NumberSpec, TableColumnSpec, TableFieldsSpec, TableSpec};

    let folder = TempDir::new().unwrap();
    let file = folder.path().join("train.parquet");
    fs::write(&file, b"PAR1").unwrap();
    let columns = vec![TableColumnSpec::new("x", TableFieldsSpec::Number(NumberSpec::new("x")))];
    let table = TableSpec { files: vec![file], columns };
    for (spec, format) in
        [(DatasetSpec::Parquet(table.clone()), "Parquet"), (DatasetSpec::Arrow(table), "Arrow")]
    {
        let error = load(&spec, None).unwrap_err().to_string();
        let expected =
            format!("this program cannot read {format} files: build it with `--features columnar`");
        assert_eq!(error, expected);
    }
}
