//! Tables that tests write in each format, and the columns that are expected when they are read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::builder::{
    FixedSizeListBuilder, Float32Builder, Int64Builder, ListBuilder, UInt8Builder, UInt32Builder,
};
use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, DictionaryArray, Float32Array, Int16Array, Int32Array, Int64Array,
    RecordBatch, StringArray, UInt32Array,
};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::properties::{WriterProperties, WriterVersion};
use proptest::prelude::*;
use pushpull_messages::input::{
    CategorySpec, DatasetSpec, ListKind, ListSpec, NumberSpec, TableColumnSpec, TableFieldsSpec, TableSpec,
    VocabularySpec,
};

use crate::Column;

/// The format, compression and encoding with which a test writes a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum How {
    Parquet { compression: Compression, dictionary: bool, version: WriterVersion },
    Arrow { is_file: bool, compression: Option<CompressionType> },
}

impl How {
    pub(crate) const PARQUET: Self = Self::Parquet {
        compression: Compression::SNAPPY,
        dictionary: true,
        version: WriterVersion::PARQUET_1_0,
    };
    pub(crate) const FILE: Self = Self::Arrow { is_file: true, compression: None };

    /// Returns the tested ways of writing a table: each format with several compressions.
    pub(crate) fn all() -> Vec<Self> {
        let zstd = Compression::ZSTD(ZstdLevel::default());
        let (one, two) = (WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0);
        let parquet = |compression, dictionary, version| Self::Parquet { compression, dictionary, version };
        let arrow = |is_file, compression| Self::Arrow { is_file, compression };
        vec![
            Self::PARQUET,
            parquet(Compression::UNCOMPRESSED, false, one),
            parquet(zstd, true, two),
            parquet(zstd, false, one),
            parquet(Compression::LZ4_RAW, true, one),
            Self::FILE,
            arrow(false, None),
            arrow(false, Some(CompressionType::LZ4_FRAME)),
            arrow(true, Some(CompressionType::ZSTD)),
        ]
    }

    pub(crate) fn is_parquet(self) -> bool {
        matches!(self, Self::Parquet { .. })
    }

    /// Returns the spec of a data set whose `files` were written in this way.
    pub(crate) fn spec(self, files: Vec<PathBuf>, columns: Vec<TableColumnSpec>) -> DatasetSpec {
        let table = TableSpec { files, columns };
        if self.is_parquet() { DatasetSpec::Parquet(table) } else { DatasetSpec::Arrow(table) }
    }
}

impl Arbitrary for How {
    type Parameters = ();
    type Strategy = BoxedStrategy<Self>;

    fn arbitrary_with((): ()) -> Self::Strategy {
        prop::sample::select(Self::all()).boxed()
    }
}

/// A row of a [`table`]. `None` is written as null.
#[derive(Clone, Debug)]
pub(crate) struct Person {
    pub(crate) height: Option<f32>,
    pub(crate) tall: bool,
    pub(crate) age: i16,
    pub(crate) word: Option<u8>,
    pub(crate) other: i32,
    pub(crate) image: [u8; 4],
    pub(crate) tokens: [u8; 4],
}

impl Arbitrary for Person {
    type Parameters = ();
    type Strategy = BoxedStrategy<Self>;

    fn arbitrary_with((): ()) -> Self::Strategy {
        let fields = (
            -9e9f32..9e9,
            any::<bool>(),
            any::<i16>(),
            0u8..3,
            any::<i32>(),
            any::<[u8; 4]>(),
            any::<[u8; 4]>(),
        );
        fields
            .prop_map(|(height, tall, age, word, other, image, tokens)| {
                let (height, word) = (Some(height), Some(word));
                Self { height, tall, age, word, other, image, tokens }
            })
            .boxed()
    }
}

impl Person {
    /// Returns the category as which the field `word` is read; −1 if `word` is null.
    pub(crate) fn id(&self) -> i32 {
        self.word.map_or(-1, i32::from)
    }

    /// Returns the values that a reader is expected to give for this row, one for each of [`columns`].
    pub(crate) fn values(&self) -> Vec<Column> {
        let height = self.height.unwrap_or(f32::NAN);
        let image = self.image.map(|pixel| f32::from(pixel) / 255.0);
        vec![
            Column::F32(vec![height, f32::from(u8::from(self.tall)), self.age.into()]),
            Column::I32(vec![self.id()]),
            Column::I32(vec![self.other, self.tall.into()]),
            Column::F32(image.into()),
            Column::F32(vec![height, 0.5, -1.0]),
            Column::I32(self.tokens.map(i32::from).into()),
        ]
    }
}

/// Returns `count` fixed rows, all different.
pub(crate) fn people(count: usize) -> Vec<Person> {
    let person = |at: usize| {
        let byte = at as u8;
        Person {
            height: Some(at as f32 + 0.25),
            tall: at.is_multiple_of(3),
            age: -(at as i16),
            word: Some(byte % 3),
            other: at as i32 * 1000,
            image: [byte, 0, 255, byte],
            tokens: [1, byte, 3, 4],
        }
    };
    (0..count).map(person).collect()
}

pub(crate) fn column(name: &str, fields: TableFieldsSpec) -> TableColumnSpec {
    TableColumnSpec::new(name, fields)
}

/// Returns the column specs with which most tests read a [`table`].
pub(crate) fn columns() -> Vec<TableColumnSpec> {
    let numbers = ["height", "tall", "age"].map(NumberSpec::new);
    let ids =
        |field: &str| CategorySpec { field: field.into(), vocabulary: VocabularySpec::Ids, unknown: None };
    let list = |field: &str, kind, shape: &[usize]| {
        TableFieldsSpec::List(ListSpec::new(field, kind, shape.to_vec()))
    };
    let label = CategorySpec::new("word", &["word 0", "word 1", "word 2"], None);
    vec![
        column("numbers", TableFieldsSpec::Numbers(numbers.into())),
        column("label", TableFieldsSpec::Category(label)),
        column("ids", TableFieldsSpec::Categories(vec![ids("other"), ids("tall")])),
        column("image", list("image", ListKind::Pixels, &[2, 2, 1])),
        column("vector", list("vector", ListKind::Float, &[3])),
        column("tokens", list("tokens", ListKind::Integer, &[2, 2])),
    ]
}

pub(crate) fn spec(how: How, files: Vec<PathBuf>) -> DatasetSpec {
    how.spec(files, columns())
}

/// Returns a table with these rows. It also has fields that no column of [`columns`] reads.
pub(crate) fn table(people: &[Person]) -> RecordBatch {
    let word = |person: &Person| person.word.map(|word| format!("word {word}"));
    let words: DictionaryArray<Int32Type> =
        people.iter().map(word).collect::<Vec<_>>().iter().map(Option::as_deref).collect();
    let mut images = FixedSizeListBuilder::new(UInt8Builder::new(), 4);
    let mut vectors = ListBuilder::new(Float32Builder::new());
    let mut tokens = ListBuilder::new(ListBuilder::new(Int64Builder::new()));
    let mut counts = ListBuilder::new(UInt32Builder::new());
    for person in people {
        images.values().append_slice(&person.image);
        images.append(true);
        vectors.append_value([person.height, Some(0.5), Some(-1.0)]);
        for pair in person.tokens.chunks(2) {
            tokens.values().append_value(pair.iter().map(|&token| Some(token.into())));
        }
        tokens.append(true);
        counts.append_value([Some(4_000_000_000)]);
    }
    let count = |at: usize| if at == 0 { 0 } else { 4_000_000_000u32 };
    let fields: Vec<(&str, ArrayRef, bool)> = vec![
        ("height", Arc::new(people.iter().map(|person| person.height).collect::<Float32Array>()), true),
        ("tall", Arc::new(BooleanArray::from_iter(people.iter().map(|person| Some(person.tall)))), true),
        ("age", Arc::new(Int16Array::from_iter_values(people.iter().map(|person| person.age))), false),
        ("word", Arc::new(words), true),
        ("unused", Arc::new(StringArray::from_iter_values(people.iter().map(|_| "unused"))), false),
        ("other", Arc::new(Int32Array::from_iter_values(people.iter().map(|person| person.other))), false),
        ("image", Arc::new(images.finish()), true),
        ("vector", Arc::new(vectors.finish()), true),
        ("tokens", Arc::new(tokens.finish()), true),
        ("count", Arc::new(UInt32Array::from_iter_values((0..people.len()).map(count))), false),
        ("count list", Arc::new(counts.finish()), true),
    ];
    RecordBatch::try_from_iter_with_nullable(fields).unwrap()
}

/// Returns the table of the pipeline's tests, with the fields `x`, `id` and `bytes`. Each number in
/// `examples` becomes one row.
pub(crate) fn small_table(examples: std::ops::Range<usize>) -> RecordBatch {
    let mut x = ListBuilder::new(Float32Builder::new());
    examples.clone().for_each(|at| x.append_value([Some(at as f32), Some(-(at as f32))]));
    let bytes: Vec<[u8; 3]> = examples.clone().map(|at| [at as u8, 1, 2]).collect();
    let fields: Vec<(&str, ArrayRef)> = vec![
        ("x", Arc::new(x.finish())),
        ("id", Arc::new(Int64Array::from_iter_values(examples.map(|at| at as i64)))),
        ("bytes", Arc::new(BinaryArray::from_iter_values(bytes))),
    ];
    RecordBatch::try_from_iter(fields).unwrap()
}

/// Returns the column specs with which the pipeline's tests read a [`small_table`].
pub(crate) fn small_columns() -> Vec<TableColumnSpec> {
    let id = CategorySpec { field: "id".into(), vocabulary: VocabularySpec::Ids, unknown: None };
    vec![
        column("features", TableFieldsSpec::List(ListSpec::new("x", ListKind::Float, [2]))),
        column("labels", TableFieldsSpec::Category(id)),
        column("raw", TableFieldsSpec::List(ListSpec::new("bytes", ListKind::Pixels, [3]))),
    ]
}

/// Returns the bytes of a file that contains `table`, in row groups (Parquet) or record batches (Arrow) of
/// at most `group` rows.
pub(crate) fn bytes(table: &RecordBatch, how: How, group: usize) -> Vec<u8> {
    let rows = table.num_rows();
    let parts = (0..rows).step_by(group).map(|begin| table.slice(begin, group.min(rows - begin)));
    match how {
        How::Parquet { compression, dictionary, version } => {
            let strings = match compression {
                Compression::UNCOMPRESSED => Encoding::DELTA_BYTE_ARRAY,
                Compression::ZSTD(_) if !dictionary => Encoding::DELTA_LENGTH_BYTE_ARRAY,
                _ => Encoding::PLAIN,
            };
            let properties = WriterProperties::builder()
                .set_max_row_group_row_count(Some(group))
                .set_compression(compression)
                .set_dictionary_enabled(dictionary)
                .set_writer_version(version)
                .set_column_encoding("count".into(), Encoding::DELTA_BINARY_PACKED)
                .set_column_encoding("word".into(), strings)
                .set_data_page_row_count_limit(5)
                .set_write_batch_size(2)
                .build();
            let mut writer = ArrowWriter::try_new(Vec::new(), table.schema(), Some(properties)).unwrap();
            parts.for_each(|part| writer.write(&part).unwrap());
            writer.into_inner().unwrap()
        }
        How::Arrow { is_file, compression } => {
            let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
            let schema = table.schema();
            if is_file {
                let mut writer = FileWriter::try_new_with_options(Vec::new(), &schema, options).unwrap();
                parts.for_each(|part| writer.write(&part).unwrap());
                writer.into_inner().unwrap()
            } else {
                let mut writer = StreamWriter::try_new_with_options(Vec::new(), &schema, options).unwrap();
                parts.for_each(|part| writer.write(&part).unwrap());
                writer.into_inner().unwrap()
            }
        }
    }
}

/// Writes the [`bytes`] of a table to a file, and returns the file's path.
pub(crate) fn write(folder: &Path, name: &str, table: &RecordBatch, how: How, group: usize) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes(table, how, group)).unwrap();
    path
}
