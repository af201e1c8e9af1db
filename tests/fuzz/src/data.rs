//! The targets that read bytes as a file of examples, one target for each format. The file lies in memory,
//! below `/dev/shm` where there is one. Of `packed`, the first byte selects the packing.

use std::cell::RefCell;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use pushpull_input::{Column, Dataset, Datasets, InputError, Reading, TfRecordWriter, load, open};
use pushpull_messages::input::{
    CategorySpec, CsvColumnSpec, CsvFieldsSpec, CsvSpec, DatasetSpec, FeatureKind, FeatureSpec, FieldSpec,
    ListKind, ListSpec, NumberSpec, TableColumnSpec, TableFieldsSpec, TableSpec, TextSpec, TfRecordSpec,
    VocabularySpec, WindowsSpec,
};
use tempfile::TempDir;

use crate::limits::Limits;
use crate::record::example;
use crate::target::{Class, Target, check_error};

/// The largest number of examples that are read of a file.
const EXAMPLES_MAX: usize = 1 << 12;
const STAGES: &[&str] = &["refused", "opened", "an example", "all examples"];
/// What a file of a few kilobytes may cost: buffers of a megabyte are allocated for each.
const LIMITS: Limits = Limits { allocated_bytes: 256 << 20, ..Limits::usual() };

pub(crate) const IDX: Target = Target {
    name: "idx",
    about: &["worker/input/src/formats/idx"],
    check: check_idx,
    seeds: idx_seeds,
    ..USUAL
};
pub(crate) const CIFAR10: Target = Target {
    name: "cifar10",
    about: &["worker/input/src/formats/cifar10"],
    check: |bytes| read(bytes, &|file| DatasetSpec::Cifar10 { files: vec![file] }),
    seeds: cifar_seeds,
    ..USUAL
};
pub(crate) const CSV: Target = Target {
    name: "csv",
    about: &["worker/input/src/formats/csv"],
    check: |bytes| read(bytes, &|file| csv(file, bytes.len() / 2)),
    seeds: csv_seeds,
    words: &[
        b"\"",
        b"\"\"",
        b",",
        b"\r\n",
        b"1e39",
        b"nan",
        b"-0",
        b"+1",
        b"0x1",
        b"red",
        b"\xff",
        b"\xef\xbb\xbf",
        b"1_0",
    ],
    ..USUAL
};
pub(crate) const TF_RECORD: Target = Target {
    name: "tf_record",
    about: &["worker/input/src/formats/tf_record"],
    check: check_tf_record,
    seeds: tf_record_seeds,
    ..USUAL
};
pub(crate) const PARQUET: Target = Target {
    name: "parquet",
    about: &[
        "worker/input/src/formats/columnar/cells.rs",
        "worker/input/src/formats/columnar/lists.rs",
        "worker/input/src/formats/columnar/numbers.rs",
        "worker/input/src/formats/columnar/reader.rs",
        "worker/input/src/formats/columnar/row_groups",
        "worker/input/src/formats/columnar/selection.rs",
    ],
    check: |bytes| read(bytes, &|file| DatasetSpec::Parquet(table(file, bytes.len() / 2))),
    seeds: || table_seeds(&["pyarrow.parquet", "pyarrow-delta.parquet", "pyarrow-plain.parquet"]),
    words: &[b"PAR1"],
    ..USUAL
};
pub(crate) const ARROW: Target = Target {
    name: "arrow",
    about: &[
        "worker/input/src/formats/columnar/cells.rs",
        "worker/input/src/formats/columnar/ipc.rs",
        "worker/input/src/formats/columnar/lists.rs",
        "worker/input/src/formats/columnar/numbers.rs",
        "worker/input/src/formats/columnar/reader.rs",
        "worker/input/src/formats/columnar/selection.rs",
    ],
    check: |bytes| read(bytes, &|file| DatasetSpec::Arrow(table(file, bytes.len() / 2))),
    seeds: || table_seeds(&["pyarrow.feather", "pyarrow.arrows"]),
    words: &[b"ARROW1", b"\xff\xff\xff\xff"],
    ..USUAL
};
pub(crate) const PACKED: Target = Target {
    name: "packed",
    about: &["worker/input/src/formats/windows", "worker/input/src/unpacked.rs", "worker/input/src/zstd.rs"],
    check: check_packed,
    seeds: packed_seeds,
    words: &[b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18"],
    ..USUAL
};

/// A text that `zstd -19` has packed.
const ZSTD: &[u8] = b"\
    \x28\xb5\x2f\xfd\x64\x4a\x01\x15\x06\x00\x02\x86\x10\x10\xc0\xeb\x24\x4d\xb2\x70\xdb\x84\xa4\xb2\x84\
    \x55\xb5\x20\x9c\x13\xf7\xbd\x88\xf7\x37\x93\xba\xaf\x5f\xbc\x42\x87\xe2\x4a\x4e\x7f\xbd\x09\x07\xe2\
    \xce\x59\x89\x9e\xe3\xb0\x84\x2b\x4a\xe8\xcb\x5a\xcf\x68\x6a\x9b\xce\x53\x6b\x71\x65\x57\x7a\x6f\x9d\
    \x33\x2f\x3a\xa9\x3e\xa8\xd1\xd6\x95\xa4\x30\xed\x19\x10\x10\x82\x94\x93\xf4\x10\x38\xa4\x02\x3b\x49\
    \x07\x6b\x20\x42\x10\x45\x52\x34\xf6\xa6\xa0\xd2\xe0\xa6\xc8\xfc\x42\x65\xd5\x0a\x16\xfd\xec\x1c\x99\
    \x96\x60\xb4\xd0\x96\x6a\xa4\x04\x08\xf6\x79\x38\xfd\xab\x14\x41\x84\x1f\x26\x47\x86\x17\x8d\xec\x83\
    \xe8\xe3\x72\xde\xa1\xc0\xe0\xaf\x07\x48\x69\xb1\x4b\xb4\x7e\xf4\x27\xc6\x96\xcf\x1a\x28\x31\x15\xd5\
    \x86\xf0\x70\x70\xd0\x38\x0b\x80\x39\x31\x6a\xa7\xf3\x23\x0c\x47\xf9\xfb\x30\x74\xb2\x04\x04\x4a\x44\
    \xd4\x3f\x50\x05\x04\x6a\x8b\xe7\
";

const USUAL: Target =
    Target { class: Class::File, stages: STAGES, limits: LIMITS, content: |_| 0, ..Target::USUAL };

thread_local! {
    static FOLDER: RefCell<Option<TempDir>> = const { RefCell::new(None) };
}

/// Returns the path of a file of this thread.
fn file(name: &str) -> PathBuf {
    FOLDER.with(|folder| {
        let mut folder = folder.borrow_mut();
        let folder = folder.get_or_insert_with(|| {
            let memory = Path::new("/dev/shm");
            let made = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
            made.expect("a folder can be made")
        });
        folder.path().join(name)
    })
}

/// Reads all examples of a file with these bytes. One of two inputs begins behind the first examples, and one
/// of four fails at the first bad record. The number of bytes selects them, so that a file is used as it is.
fn read(bytes: &[u8], spec: &dyn Fn(PathBuf) -> DatasetSpec) -> usize {
    let path = file("data");
    std::fs::write(&path, bytes).expect("memory does not fail");
    let skip_bad_records = if bytes.len() % 8 < 6 { 2 } else { 0 };
    read_set(&spec(path), bytes.len().is_multiple_of(2), skip_bad_records)
}

fn read_set(spec: &DatasetSpec, skips: bool, skip_bad_records: u64) -> usize {
    let custom = Datasets::default();
    let reading = Reading { skip_bad_records, ..Reading::plain(&custom) };
    let set = match open(spec, &reading) {
        Ok(set) => set,
        Err(error) => {
            check_error(&error);
            return 0;
        }
    };
    match read_examples(&*set, skips) {
        Ok(0) => 1,
        Ok(read) => 2 + usize::from(read < EXAMPLES_MAX),
        Err(error) => {
            check_error(&error);
            1
        }
    }
}

fn read_examples(set: &dyn Dataset, skips: bool) -> Result<usize, InputError> {
    let declared = set.examples();
    let (mut reader, mut all) = (set.reader()?, 0);
    if skips {
        let mut rows = set.rows()?;
        all += reader.skip(2, &mut rows)? as usize;
    }
    while all < EXAMPLES_MAX {
        let mut rows = set.rows()?;
        let read = reader.read(7, &mut rows)?;
        if read == 0 {
            assert!(
                declared.is_none_or(|examples| examples >= all as u64),
                "no more examples than were declared"
            );
            break;
        }
        assert!(read <= 7, "no more examples than requested");
        all += read;
    }
    Ok(all)
}

/// The header of a file of two images, each of 3 rows and 2 columns.
const IMAGES: [u8; 16] = [0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 2];
/// The file of two labels.
const LABELS: [u8; 10] = [0, 0, 8, 1, 0, 0, 0, 2, 3, 7];

/// Reads a file of images or, if it begins as one, a file of labels, together with a valid file of the other
/// kind.
fn check_idx(bytes: &[u8]) -> usize {
    let is_labels = bytes.get(3) == Some(&LABELS[3]);
    let (name, content) =
        if is_labels { ("images", [&IMAGES[..], &[9; 12]].concat()) } else { ("labels", LABELS.to_vec()) };
    let other = file(name);
    if !other.exists() {
        std::fs::write(&other, content).expect("memory does not fail");
    }
    read(bytes, &|data| match is_labels {
        true => DatasetSpec::Idx { images: other.clone(), labels: data },
        false => DatasetSpec::Idx { images: data, labels: other.clone() },
    })
}

fn idx_seeds() -> Vec<(String, Vec<u8>)> {
    let images = [&IMAGES[..], &[9; 12]].concat();
    vec![("images".to_owned(), images), ("labels".to_owned(), LABELS.to_vec())]
}

fn cifar_seeds() -> Vec<(String, Vec<u8>)> {
    let example = [&[3u8][..], &[7; 3072]].concat();
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(&example.repeat(2)).expect("memory does not fail");
    vec![("packed".to_owned(), packed.finish().expect("memory does not fail")), ("plain".to_owned(), example)]
}

/// Returns how a CSV file is read. `how` selects the settings, the usual ones mostly.
fn csv(file: PathBuf, how: usize) -> DatasetSpec {
    let header = how % 4 != 3;
    let field = |index: u32, name: &str| if header { FieldSpec::from(name) } else { index.into() };
    let numbers =
        vec![NumberSpec { missing: Some(0.5), ..NumberSpec::new(0) }, NumberSpec::new(field(1, "width"))];
    let mut colour = CategorySpec::new(field(2, "colour"), &["red", "blue"], Some(2));
    colour.vocabulary = match how / 4 % 4 {
        0 => VocabularySpec::Ids,
        1 => VocabularySpec::Map([("red".to_owned(), -1), ("blue".to_owned(), 7)].into()),
        _ => colour.vocabulary,
    };
    let columns = vec![
        CsvColumnSpec { name: "x".into(), fields: CsvFieldsSpec::Numbers(numbers) },
        CsvColumnSpec { name: "label".into(), fields: CsvFieldsSpec::Category(colour) },
    ];
    DatasetSpec::Csv(CsvSpec {
        files: vec![file],
        columns,
        header,
        trim: how % 3 != 1,
        skip_lines: u32::from(how % 16 == 9),
        delimiter: if how % 16 == 5 { ';' } else { ',' },
    })
}

fn csv_seeds() -> Vec<(String, Vec<u8>)> {
    let text = "height,width,colour\n1,2.5,red\n,-1e3,\"blue\"\r\n\n3 , 4,\"gr\"\"een\"\n";
    vec![("rows".to_owned(), text.as_bytes().to_vec())]
}

/// Reads a file of records. If the first byte is even, the checksums are corrected first.
fn check_tf_record(bytes: &[u8]) -> usize {
    let Some((&how, content)) = bytes.split_first() else { return 0 };
    let content = if how.is_multiple_of(2) { corrected(content) } else { content.to_vec() };
    let features = vec![
        FeatureSpec::new("x", "x", FeatureKind::Float, [2]),
        FeatureSpec::new("label", "label", FeatureKind::Int64, [1]),
        FeatureSpec::new("image", "image", FeatureKind::Pixels, [2, 2]),
        FeatureSpec::new("image", "bytes", FeatureKind::Bytes, [4]),
    ];
    read(&content, &|file| {
        DatasetSpec::TfRecord(TfRecordSpec { files: vec![file], features: features.clone() })
    })
}

/// Returns the records with the checksums that their bytes have.
fn corrected(bytes: &[u8]) -> Vec<u8> {
    use pushpull_storage::record::{HEAD_BYTES, TAIL_BYTES, masked_crc32c};
    let (mut bytes, mut at) = (bytes.to_vec(), 0);
    while let Some(head) = bytes.get_mut(at..at + HEAD_BYTES) {
        let length = u64::from_le_bytes(head[..8].try_into().expect("8 bytes"));
        let checksum = masked_crc32c(&head[..8]).to_le_bytes();
        head[8..].copy_from_slice(&checksum);
        let begin = at + HEAD_BYTES;
        let Some(end) = usize::try_from(length).ok().and_then(|length| begin.checked_add(length)) else {
            break;
        };
        let Some(behind) = end.checked_add(TAIL_BYTES).filter(|&behind| behind <= bytes.len()) else { break };
        let checksum = masked_crc32c(&bytes[begin..end]).to_le_bytes();
        bytes[end..behind].copy_from_slice(&checksum);
        at = behind;
    }
    bytes
}

fn tf_record_seeds() -> Vec<(String, Vec<u8>)> {
    let records = |mut writer: TfRecordWriter<Vec<u8>>| {
        (0..3).for_each(|number| writer.write_example(&example(number)).expect("memory does not fail"));
        writer.finish().expect("memory does not fail")
    };
    vec![
        ("plain".to_owned(), [&[0], &records(TfRecordWriter::plain(Vec::new()))[..]].concat()),
        ("gzip".to_owned(), [&[1], &records(TfRecordWriter::gzip(Vec::new()))[..]].concat()),
    ]
}

/// Returns the columns of the tables that pyarrow has written for the tests of `pushpull-input`. An even
/// `how` adds columns of the other kinds.
fn table(file: PathBuf, how: usize) -> TableSpec {
    let list = |kind, shape: &[usize], field: &str| {
        TableFieldsSpec::List(ListSpec::new(field, kind, shape.to_vec()))
    };
    let gap = NumberSpec { missing: Some(-1.0), ..NumberSpec::new("gap") };
    let mut columns = vec![
        TableColumnSpec::new(
            "features",
            TableFieldsSpec::Numbers(vec![NumberSpec::new("x"), NumberSpec::new("flag"), gap]),
        ),
        TableColumnSpec::new(
            "labels",
            TableFieldsSpec::Category(CategorySpec::new("word", &["odd", "even"], None)),
        ),
        TableColumnSpec::new("image", list(ListKind::Pixels, &[2, 2], "image")),
        TableColumnSpec::new("pairs", list(ListKind::Integer, &[2, 2], "pairs")),
    ];
    if how.is_multiple_of(2) {
        let mut ids = CategorySpec::new("gap", &[], Some(-1));
        ids.vocabulary = VocabularySpec::Ids;
        columns.extend([
            TableColumnSpec::new("number", TableFieldsSpec::Number(NumberSpec::new("x"))),
            TableColumnSpec::new("ids", TableFieldsSpec::Categories(vec![ids])),
            TableColumnSpec::new("flat", list(ListKind::Bytes, &[4], "image")),
            TableColumnSpec::new("floats", list(ListKind::Float, &[4], "image")),
        ]);
    }
    TableSpec { files: vec![file], columns }
}

fn table_seeds(names: &[&str]) -> Vec<(String, Vec<u8>)> {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../worker/input/src/formats/columnar/testdata");
    names
        .iter()
        .map(|name| ((*name).to_owned(), std::fs::read(folder.join(name)).expect("a file of the tests")))
        .collect()
}

/// Reads a text that is packed, or any other file of which windows are made.
fn check_packed(bytes: &[u8]) -> usize {
    let path = file("text");
    std::fs::write(&path, bytes).expect("memory does not fail");
    let windows = match bytes.len() % 4 {
        3 => WindowsSpec::every(3, 0.25, 0.75),
        _ => WindowsSpec::apart(8, 0.0, 1.0),
    };
    let text = TextSpec { file: path, windows };
    match load(&DatasetSpec::Text(text), None) {
        Ok(set) => {
            let mut columns: Vec<Column> = Vec::new();
            set.fill(&[0], &mut columns);
            assert!(columns.len() == set.columns().len(), "an example has all columns");
            3
        }
        Err(error) => {
            check_error(&error);
            usize::from(matches!(error, InputError::Extent { .. }))
        }
    }
}

fn packed_seeds() -> Vec<(String, Vec<u8>)> {
    let text = "a text that is long enough for some windows, and is repeated: a text that is long enough";
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(text.as_bytes()).expect("memory does not fail");
    vec![
        ("zstd".to_owned(), ZSTD.to_vec()),
        ("gzip".to_owned(), gzip.finish().expect("memory does not fail")),
        ("plain".to_owned(), text.as_bytes().to_vec()),
    ]
}
