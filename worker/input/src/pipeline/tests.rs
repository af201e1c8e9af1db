//! Tests the pipeline with real files of every format: streamed batches must be bitwise equal to batches of
//! the same files loaded into memory.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use pushpull_messages::input::{
    CategorySpec, Column, CsvColumnSpec, CsvFieldsSpec, CsvSpec, FeatureKind, FeatureSpec, NumberSpec,
    RepeatSpec, TfRecordSpec,
};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use tempfile::TempDir;

use super::*;
use crate::dataset::{Rows, read_some};
#[cfg(feature = "columnar")]
use crate::formats::columnar::written;
use crate::tests::damaged::{bad_inputs, gzip, write};
use crate::{Example, TfRecordWriter};
use crate::{in_directory, load_from, open as open_set};

/// The formats of files that can be streamed.
const FORMATS: &[&str] = &[
    "idx",
    "cifar10",
    "csv",
    "tfrecord",
    #[cfg(feature = "columnar")]
    "parquet",
    #[cfg(feature = "columnar")]
    "arrow",
];

/// Returns the bytes of a file unchanged, gzipped, or compressed with zstd, depending on `how` modulo 3.
fn packed(bytes: &[u8], how: usize) -> Vec<u8> {
    match how % 3 {
        0 => bytes.to_vec(),
        1 => gzip(bytes),
        _ => compress_to_vec(bytes, CompressionLevel::Fastest),
    }
}

/// Writes a data set of `format` and returns its spec. Each file has the number of examples given in
/// `sizes`; IDX has all examples in one pair of files.
fn files(folder: &Path, format: &str, sizes: &[usize]) -> DatasetSpec {
    let mut first = 0;
    let mut paths = Vec::new();
    for (at, &size) in sizes.iter().enumerate() {
        let bytes = file(format, first, size);
        let bytes = if format == "parquet" { bytes } else { packed(&bytes, at) };
        paths.push(write(folder, &format!("part-{at}"), &bytes));
        first += size;
    }
    match format {
        "idx" => {
            let all: usize = sizes.iter().sum();
            let header = |magic: u32, extents: &[u32]| -> Vec<u8> {
                [magic].iter().chain(extents).flat_map(|number| number.to_be_bytes()).collect()
            };
            let pixels: Vec<u8> = (0..all * 6).map(|at| at as u8).collect();
            let labels: Vec<u8> = (0..all).map(|at| (at % 10) as u8).collect();
            let images = [header(0x803, &[all as u32, 2, 3]), pixels].concat();
            let labels = [header(0x801, &[all as u32]), labels].concat();
            DatasetSpec::Idx {
                images: write(folder, "images", &packed(&images, sizes.len())),
                labels: write(folder, "labels", &packed(&labels, sizes.len() + 1)),
            }
        }
        "cifar10" => DatasetSpec::Cifar10 { files: paths },
        "csv" => DatasetSpec::Csv(csv(paths)),
        #[cfg(feature = "columnar")]
        "parquet" => written::How::PARQUET.spec(paths, written::small_columns()),
        #[cfg(feature = "columnar")]
        "arrow" => written::How::FILE.spec(paths, written::small_columns()),
        _ => DatasetSpec::TfRecord(tf_record(paths)),
    }
}

fn csv(files: Vec<PathBuf>) -> CsvSpec {
    let column = |name: &str, fields| CsvColumnSpec { name: name.to_owned(), fields };
    CsvSpec {
        files,
        columns: vec![
            column("features", CsvFieldsSpec::Numbers(vec![NumberSpec::new(0), NumberSpec::new(2)])),
            column("labels", CsvFieldsSpec::Category(CategorySpec::new(1, &["even", "odd"], None))),
        ],
        header: true,
        ..CsvSpec::default()
    }
}

fn tf_record(files: Vec<PathBuf>) -> TfRecordSpec {
    let features = vec![
        FeatureSpec::new("x", "features", FeatureKind::Float, [2]),
        FeatureSpec::new("id", "labels", FeatureKind::Int64, []),
        FeatureSpec::new("bytes", "raw", FeatureKind::Pixels, [3]),
    ];
    TfRecordSpec { files, features }
}

/// Returns the bytes of a file with `size` examples, of which the first has the number `first`.
fn file(format: &str, first: usize, size: usize) -> Vec<u8> {
    let examples = first..first + size;
    match format {
        "cifar10" => examples
            .flat_map(|at| {
                std::iter::once((at % 10) as u8).chain((0..3072).map(move |pixel| (pixel * 7 + at) as u8))
            })
            .collect(),
        "csv" => {
            let row = |at: usize| format!("{}.5,{},-{at}\n", at, ["even", "odd"][at % 2]);
            ("a,b,c\n".to_owned() + &examples.map(row).collect::<String>()).into_bytes()
        }
        #[cfg(feature = "columnar")]
        "parquet" | "arrow" => {
            let how = if format == "parquet" { written::How::PARQUET } else { written::How::FILE };
            written::bytes(&written::small_table(examples), how, 4)
        }
        _ => {
            let mut writer = TfRecordWriter::plain(Vec::new());
            for at in examples {
                writer.write_example(&record(at)).unwrap();
            }
            writer.finish().unwrap()
        }
    }
}

fn record(at: usize) -> Example {
    let x = at as f32;
    Example::new().floats("x", [x, -x]).ints("id", [at as i64]).bytes("bytes", [at as u8, 1, 2])
}

fn open(input: &InputSpec, batch: usize, worker: PipelineWorker) -> Result<Pipeline, InputError> {
    Pipeline::open(input, &Datasets::default(), batch, 5, worker)
}

/// Returns the `file://` address of a folder. If files are given by such addresses, they are read as objects
/// of a store.
fn address(folder: &Path) -> PathBuf {
    format!("file://{}", folder.display()).into()
}

/// Returns the next `count` batches, or fewer if the input ends earlier.
fn take(pipeline: &mut Pipeline, count: usize) -> Vec<Vec<Column>> {
    let mut next = || {
        let mut batch = Batch::default();
        pipeline.fill(&mut batch).ok().map(|()| batch.columns)
    };
    (0..count).map_while(|_| next()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn streamed_files_have_the_bits_of_memory(
        format in 0..FORMATS.len(), sizes in prop::collection::vec(3usize..12, 1..5), workers in 1u32..4,
        interleave in 1u32..4, buffer in 1u32..20, batch in 1usize..6, epochs in 1u64..3, before in 0usize..8,
        policy in 0..3usize, addressed: bool,
    ) {
        let folder = TempDir::new().unwrap();
        let set = files(folder.path(), FORMATS[format], &sizes);
        let streamed = if addressed { in_directory(&set, &address(folder.path())).unwrap() } else { set.clone() };
        let mut input = InputSpec::new(set.clone(), set);
        input.shuffle = ShuffleSpec::Buffer(buffer);
        input.repeat = RepeatSpec::Epochs(epochs);
        input.interleave = interleave;
        input.shard = [ShardSpec::Auto, ShardSpec::Data, ShardSpec::Off][policy];
        let worker = PipelineWorker { index: workers - 1, workers };
        input.stream = StreamSpec::Never;
        let mut held = open(&input, batch, worker).unwrap();
        (input.stream, input.train) = (StreamSpec::Always, streamed);
        let mut streamed = open(&input, batch, worker).unwrap();
        prop_assert!(streamed.is_streamed() && !held.is_streamed());
        let expected = take(&mut held, 100);
        prop_assert_eq!(take(&mut streamed, 100), expected.clone());
        let done = before.min(expected.len());
        let mut restored = open(&input, batch, worker).unwrap();
        restored.restore((done * batch) as u64).unwrap();
        prop_assert_eq!(&take(&mut restored, 100)[..], &expected[done..]);
    }
}

/// Checks that streaming finds every kind of damage that [`bad_inputs`] makes.
#[test]
fn damaged_files_are_found_while_streaming() {
    for (format, records) in [("cifar10", 1), ("csv", 3), ("tfrecord", 3)] {
        let folder = TempDir::new().unwrap();
        let spec = files(folder.path(), format, &[records]);
        let path = spec.files()[0].to_path_buf();
        let good = {
            let mut input = Vec::new();
            let (mut reader, _) = crate::unpacked::unpacked(std::fs::File::open(&path).unwrap()).unwrap();
            std::io::Read::read_to_end(&mut reader, &mut input).unwrap();
            input
        };
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let custom = Datasets::default();
            let set = open_set(&spec, &Reading::plain(&custom))?;
            let mut rows = Rows::of(set.columns())?;
            let mut reader = set.reader()?;
            while read_some(&mut *reader, 2, &mut rows)? > 0 {}
            Ok(())
        };
        // A CSV or TFRecord file that is cut after a record is a whole file.
        let mut whole: Vec<usize> = match format {
            "csv" => (0..good.len()).filter(|&end| end > 12).collect(),
            "tfrecord" => (1..records).map(|count| file(format, 0, count).len()).collect(),
            _ => Vec::new(),
        };
        whole.dedup();
        bad_inputs(&good, read, &whole);
    }
}

#[test]
fn a_streamed_image_file_is_checked_to_its_end() {
    let folder = TempDir::new().unwrap();
    let DatasetSpec::Idx { images, labels } = files(folder.path(), "idx", &[3]) else { panic!("two files") };
    let (image_bytes, label_bytes) = (std::fs::read(&images).unwrap(), std::fs::read(&labels).unwrap());
    let read = |packed: &[u8]| {
        std::fs::write(&images, packed).unwrap();
        let spec = DatasetSpec::Idx { images: images.clone(), labels: labels.clone() };
        let set = open_set(&spec, &Reading::plain(&Datasets::default()))?;
        let (mut reader, mut rows) = (set.reader()?, set.rows()?);
        while read_some(&mut *reader, 2, &mut rows)? > 0 {}
        Ok::<_, InputError>(rows.len())
    };
    assert_eq!(read(&image_bytes).unwrap(), 3);
    let mut plain = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&image_bytes[..]), &mut plain).unwrap();
    let packed = gzip(&plain);
    assert_eq!(read(&packed).unwrap(), 3);
    for end in 0..packed.len() {
        assert!(read(&packed[..end]).is_err(), "cut at {end}");
    }
    let mut other = packed.clone();
    other[packed.len() - 8] ^= 1;
    assert!(matches!(read(&other), Err(InputError::Read { .. })), "another checksum");
    assert!(matches!(read(&[&plain, &b"x"[..]].concat()), Err(InputError::Trailing { .. })));
    assert!(matches!(read(&gzip(&[&plain, &b"x"[..]].concat())), Err(InputError::Trailing { .. })));
    std::fs::write(&labels, &label_bytes[..label_bytes.len() - 1]).unwrap();
    assert!(read(&packed).is_err(), "a label is missing");
}

#[test]
fn damaged_rows_are_counted_whatever_ends_a_line() {
    let folder = TempDir::new().unwrap();
    let rows = b"a,b,c\r0,even,0\rx,odd,1\rx,even,2\r3,odd,3\r";
    let set = DatasetSpec::Csv(csv(vec![write(folder.path(), "data.csv", rows)]));
    for (skip_bad_records, works) in [(1, false), (2, true)] {
        let custom = Datasets::default();
        let reading = Reading { skip_bad_records, ..Reading::plain(&custom) };
        assert_eq!(load_from(&set, &reading).is_ok(), works, "{skip_bad_records}");
    }
}

/// Restores the pipelines of one to three workers to a position that may have been saved by another number
/// of workers. Each pipeline must give the same batches whether it streams the files or has them in memory.
#[test]
fn other_workers_resume_a_stream() {
    for (format, workers) in FORMATS.iter().flat_map(|format| (1..4).map(move |workers| (format, workers))) {
        let folder = TempDir::new().unwrap();
        let set = files(folder.path(), format, &[7, 8, 9, 10]);
        let mut input = InputSpec::new(set.clone(), set);
        (input.shuffle, input.interleave) = (ShuffleSpec::Buffer(6), 2);
        for index in 0..workers {
            let restored = |stream| {
                let input = InputSpec { stream, ..input.clone() };
                let mut pipeline = open(&input, 4, PipelineWorker { index, workers }).unwrap();
                pipeline.restore(29).unwrap();
                take(&mut pipeline, 20)
            };
            let expected = restored(StreamSpec::Never);
            assert_eq!(expected.len(), 20);
            assert_eq!(restored(StreamSpec::Always), expected, "{format}: {index} of {workers}");
        }
    }
}

#[test]
fn auto_streams_large_files_only() {
    let folder = TempDir::new().unwrap();
    let large = write(folder.path(), "large.csv", b"");
    std::fs::File::options().write(true).open(&large).unwrap().set_len(STREAM_BYTES_MIN + 1).unwrap();
    let small = write(folder.path(), "small.csv", b"a,b,c\n1,odd,2\n");
    for (file, shuffle, expected) in [
        (&large, ShuffleSpec::None, true),
        (&large, ShuffleSpec::Buffer(9), true),
        (&large, ShuffleSpec::Full, false),
        (&small, ShuffleSpec::None, false),
    ] {
        let set = DatasetSpec::Csv(csv(vec![file.clone()]));
        let mut input = InputSpec::new(set.clone(), set.clone());
        input.shuffle = shuffle;
        let found = FoundFiles::find(&set, &Default::default()).unwrap();
        assert_eq!(streams(&input, Some(found.bytes())), expected, "{file:?} {shuffle:?}");
    }
}

#[test]
fn a_file_without_examples_is_left_out_among_others() {
    for (format, empty) in [("cifar10", &b""[..]), ("csv", b"a,b,c\n"), ("csv", b""), ("tfrecord", b"")] {
        let folder = TempDir::new().unwrap();
        let mut set = files(folder.path(), format, &[3, 4, 5]);
        let (DatasetSpec::Cifar10 { files }
        | DatasetSpec::Csv(CsvSpec { files, .. })
        | DatasetSpec::TfRecord(TfRecordSpec { files, .. })) = &mut set
        else {
            panic!("several files")
        };
        files.insert(1, write(folder.path(), "empty", empty));
        let open_with = |set: &DatasetSpec, stream| {
            let mut input = InputSpec::new(set.clone(), set.clone());
            (input.shuffle, input.repeat) = (ShuffleSpec::None, RepeatSpec::Epochs(2));
            (input.interleave, input.stream) = (2, stream);
            open(&input, 1, PipelineWorker { index: 0, workers: 1 })
        };
        for stream in [StreamSpec::Always, StreamSpec::Never] {
            let mut pipeline = open_with(&set, stream).unwrap();
            assert_eq!(take(&mut pipeline, 100).len(), 24, "{format} {stream:?}");
            assert_eq!(pipeline.files().unwrap().files, 4);
        }
        if let DatasetSpec::Csv(csv) = &mut set {
            csv.files.retain(|file| file.ends_with("empty"));
            let error = open_with(&set, StreamSpec::Never).unwrap_err();
            assert!(matches!(error, InputError::NoExample { .. } | InputError::Row { .. }), "{error}");
        }
    }
}

#[test]
fn a_pattern_names_files_in_order() {
    let folder = TempDir::new().unwrap();
    for (at, name) in ["b-1.csv", "a-1.csv", "a-2.csv", "c.txt"].iter().enumerate() {
        write(folder.path(), name, &file("csv", 10 * at, 2));
    }
    let read_in = |folder: &Path, pattern: &str| {
        let set = DatasetSpec::Csv(csv(vec![folder.join(pattern)]));
        let mut input = InputSpec::new(set.clone(), set);
        (input.shuffle, input.repeat) = (ShuffleSpec::None, RepeatSpec::Epochs(1));
        let mut pipeline = open(&input, 1, PipelineWorker { index: 0, workers: 1 })?;
        Ok(take(&mut pipeline, 20).iter().map(|columns| columns[0].f32().unwrap()[0]).collect::<Vec<f32>>())
    };
    for place in [folder.path().to_path_buf(), address(folder.path())] {
        let read = |pattern| read_in(&place, pattern);
        assert_eq!(read("*.csv").unwrap(), [10.5, 11.5, 20.5, 21.5, 0.5, 1.5]);
        assert_eq!(read("a-?.csv").unwrap(), [10.5, 11.5, 20.5, 21.5]);
        let error: InputError = read("d*.csv").unwrap_err();
        assert!(matches!(&error, InputError::NoMatch { .. }), "{error}");
        assert!(matches!(read("[.csv").unwrap_err(), InputError::NoMatch { .. }));
    }
    let error = read_in(&address(folder.path()).join("*"), "a.csv").unwrap_err().to_string();
    assert!(error.contains("only the last part of an address"), "{error}");
    std::os::unix::fs::symlink(folder.path().join("absent"), folder.path().join("a-3.csv")).unwrap();
    assert!(matches!(read_in(folder.path(), "a-?.csv").unwrap_err(), InputError::Read { .. }));
}

#[test]
fn a_limited_number_of_damaged_records_is_skipped() {
    let folder = TempDir::new().unwrap();
    // A TFRecord file with a record that is no example, and one whose data were changed on the way.
    let mut writer = TfRecordWriter::plain(Vec::new());
    for at in 0..6 {
        match at {
            2 => writer.write(b"\xff no example").unwrap(),
            _ => writer.write_example(&record(at)).unwrap(),
        }
    }
    let mut bytes = writer.finish().unwrap();
    let last = bytes.len() - 8;
    bytes[last] ^= 1;
    let records = DatasetSpec::TfRecord(tf_record(vec![write(folder.path(), "data", &bytes)]));
    let rows = b"a,b,c\n0.5,even,0\n1.5,odd,1\nx,even,2\n3.5,odd,3\n4.5,even,4\n5.5,what,5\n";
    let rows = DatasetSpec::Csv(csv(vec![write(folder.path(), "data.csv", rows)]));
    for set in [records, rows] {
        for stream in [StreamSpec::Always, StreamSpec::Never] {
            let read = |skip_bad_records| {
                let mut input = InputSpec::new(set.clone(), set.clone());
                (input.shuffle, input.repeat) = (ShuffleSpec::None, RepeatSpec::Epochs(3));
                (input.skip_bad_records, input.stream) = (skip_bad_records, stream);
                let mut pipeline = open(&input, 1, PipelineWorker { index: 0, workers: 1 })?;
                let mut read = Vec::new();
                loop {
                    let mut batch = Batch::default();
                    match pipeline.fill(&mut batch) {
                        Ok(()) => read.push(batch.columns[0].f32().unwrap()[0].floor()),
                        Err(InputError::Ended { .. }) => return Ok((read, pipeline.skipped().count())),
                        Err(error) => return Err(error),
                    }
                }
            };
            // A damaged record counts once, although three epochs read it.
            assert_eq!(read(2).unwrap(), ([[0.0, 1.0, 3.0, 4.0]; 3].concat(), 2));
            let error: InputError = read(1).unwrap_err();
            assert!(matches!(&error, InputError::BadRecords { max: 1, .. }), "{error}");
            let error = read(0).unwrap_err().to_string();
            assert!(error.contains("record 2") || error.contains("line 4"), "{error}");
        }
    }
}

#[test]
fn an_unknown_custom_set_says_what_to_do() {
    let set = || DatasetSpec::Custom("mine".into());
    let error = open(&InputSpec::new(set(), set()), 1, PipelineWorker { index: 0, workers: 1 }).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the job reads the data set 'mine', but this program has none of its own: use a program that gives a data set \
         of this name to pushpull::worker_main_with or evaluator_main_with"
    );
}
