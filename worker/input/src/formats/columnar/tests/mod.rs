//! Tests of Parquet and Arrow files: tables are written, then read as columns.

mod damaged;
mod pyarrow;
pub(crate) mod written;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, BooleanArray, FixedSizeBinaryArray, RecordBatch, UInt64Array};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use proptest::prelude::*;
use pushpull_messages::input::{
    CategorySpec, ColumnSpec, DatasetSpec, FieldSpec, ListKind, ListSpec, NumberSpec, TableColumnSpec,
    TableFieldsSpec, TableSpec, VocabularySpec,
};
use pushpull_messages::tensor::TensorSpec;
use tempfile::TempDir;

use self::written::{How, Person, column, people, spec, table, write};
use crate::dataset::{Dataset, Rows, read_some};
use crate::tests::damaged::gzip;
use crate::{Column, Datasets, InputError, Reading, TableError, load_from, open};

/// Opens a data set whose readers skip at most `bad` damaged rows.
fn opened(spec: &DatasetSpec, bad: u64) -> Result<std::sync::Arc<dyn Dataset>, InputError> {
    let custom = Datasets::default();
    open(spec, &Reading { skip_bad_records: bad, ..Reading::plain(&custom) })
}

/// Skips the first `skipped` examples of a data set, and reads the others, `block` at a time. Returns the
/// values of the examples that were read.
fn rest(set: &dyn Dataset, skipped: u64, block: usize) -> Result<Vec<Vec<Column>>, InputError> {
    let (mut reader, mut rows) = (set.reader()?, set.rows()?);
    assert_eq!(reader.skip(skipped, &mut rows)?, skipped);
    while read_some(&mut *reader, block, &mut rows)? > 0 {}
    Ok((0..rows.len()).map(|row| rows.row(row).values()).collect())
}

/// Checks that the table `path` is refused with an error of one line, and returns the error's text.
fn refused(how: How, path: &Path, columns: Vec<TableColumnSpec>) -> String {
    let error = opened(&how.spec(vec![path.to_path_buf()], columns), 0).and_then(|set| rest(&*set, 0, 10));
    let error = error.expect_err("it should be refused").to_string();
    assert_eq!(error.lines().count(), 1, "{error}");
    error
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Checks that the rows that are read equal those that were written, from the start and from any later
    /// row.
    #[test]
    fn a_table_is_read_as_it_was_written(
        people in prop::collection::vec(any::<Person>(), 1..80), how: How, group in 1usize..30,
        block in 1usize..20, skipped in 0usize..80,
    ) {
        let folder = TempDir::new().unwrap();
        let path = write(folder.path(), "table", &table(&people), how, group);
        let set = opened(&spec(how, vec![path]), 0).unwrap();
        let expected: Vec<_> = people.iter().map(Person::values).collect();
        prop_assert_eq!(set.examples(), how.is_parquet().then_some(people.len() as u64));
        prop_assert_eq!(rest(&*set, 0, block).unwrap(), expected.clone());
        let skipped = skipped.min(people.len());
        prop_assert_eq!(&rest(&*set, skipped as u64, block).unwrap()[..], &expected[skipped..]);
    }

    /// Alternately skips and reads rows, like a worker that shares a file with other workers. The rows that
    /// are read must equal those that were written.
    #[test]
    fn rows_are_skipped_at_any_place(
        people in prop::collection::vec(any::<Person>(), 1..60), how: How, group in 1usize..30,
        steps in prop::collection::vec((0u64..25, 1usize..9), 1..12),
    ) {
        let folder = TempDir::new().unwrap();
        let path = write(folder.path(), "table", &table(&people), how, group);
        let set = opened(&spec(how, vec![path]), 0).unwrap();
        let (mut reader, mut rows) = (set.reader().unwrap(), set.rows().unwrap());
        let mut at = 0;
        for (skip, read) in steps {
            let left = (people.len() - at) as u64;
            prop_assert_eq!(reader.skip(skip, &mut rows).unwrap(), skip.min(left));
            at += skip.min(left) as usize;
            rows.clear();
            let mut got = 0;
            while got < read {
                match read_some(&mut *reader, read - got, &mut rows).unwrap() {
                    0 => break,
                    more => got += more,
                }
            }
            prop_assert_eq!(got, read.min(people.len() - at));
            let values: Vec<_> = (0..rows.len()).map(|row| rows.row(row).values()).collect();
            let expected: Vec<_> = people[at..at + got].iter().map(Person::values).collect();
            prop_assert_eq!(values, expected);
            at += got;
        }
    }
}

/// Checks that a table loaded into memory has the columns of the spec and the rows that were written.
#[test]
fn a_loaded_table_is_an_in_memory_set() {
    let folder = TempDir::new().unwrap();
    for how in How::all() {
        let people = people(30);
        let path = write(folder.path(), "table", &table(&people), how, 7);
        let held = load_from(&spec(how, vec![path]), &Reading::plain(&Datasets::default())).unwrap();
        let example = |name: &str, example| ColumnSpec { name: name.into(), example };
        let columns = [
            example("numbers", TensorSpec::f32([3])),
            example("label", TensorSpec::i32([])),
            example("ids", TensorSpec::i32([2])),
            example("image", TensorSpec::f32([2, 2, 1])),
            example("vector", TensorSpec::f32([3])),
            example("tokens", TensorSpec::i32([2, 2])),
        ];
        assert_eq!(held.columns(), columns);
        let mut rows = Rows::of(&columns).unwrap();
        people.iter().for_each(|person| rows.push(&person.values()).unwrap());
        let expected: crate::InMemory = rows.try_into().unwrap();
        let all = |set: &crate::InMemory| rest(set, 0, 30).unwrap();
        assert_eq!(all(&held), all(&expected), "{how:?}");
    }
}

#[test]
fn a_bad_row_names_the_file_the_row_and_the_field() {
    let folder = TempDir::new().unwrap();
    for how in How::all() {
        let mut people = people(20);
        people[13].height = None;
        people[17].word = Some(9);
        let path = write(folder.path(), "table", &table(&people), how, 6);
        let file = path.display().to_string();
        let set = spec(how, vec![path]);
        let read = |bad| opened(&set, bad).and_then(|set| rest(&*set, 0, 5));
        let error = read(0).unwrap_err().to_string();
        assert!(error.contains(&format!("{file}, row 13: field 'height' is null")), "{error}");
        let error = read(1).unwrap_err().to_string();
        let words = "row 17: field 'word' is 'word 9', expected a word of the vocabulary";
        assert!(error.contains("more than 1 records are damaged") && error.contains(words), "{error}");
        let kept: Vec<_> = (0..20).filter(|row| ![13, 17].contains(row)).collect();
        let values: Vec<_> = kept.iter().map(|&row| people[row].values()).collect();
        assert_eq!(read(2).unwrap(), values);
        // What is skipped is counted as if it were read.
        assert_eq!(rest(&*opened(&set, 2).unwrap(), 14, 5).unwrap(), values[14..]);
        assert_eq!(opened(&set, 2).unwrap().examples(), None);
    }
}

#[test]
fn nulls_have_the_values_that_the_spec_gives() {
    let folder = TempDir::new().unwrap();
    for how in How::all() {
        let mut people = people(9);
        people[4].height = None;
        people[5].word = None;
        let path = write(folder.path(), "table", &table(&people), how, 4);
        let number = NumberSpec { missing: Some(-1.0), ..NumberSpec::new("height") };
        let category = CategorySpec::new("word", &["word 0", "word 1"], Some(7));
        let columns = vec![
            column("height", TableFieldsSpec::Number(number)),
            column("word", TableFieldsSpec::Category(category)),
        ];
        let set = opened(&how.spec(vec![path], columns), 0).unwrap();
        let read = rest(&*set, 4, 3).unwrap();
        assert_eq!(read[0][0], Column::F32(vec![-1.0]));
        assert_eq!(read[1][1], Column::I32(vec![7]));
        assert_eq!(
            read[2],
            [Column::F32(vec![people[6].height.unwrap()]), Column::I32(vec![people[6].id()])]
        );
    }
}

#[test]
fn a_field_that_does_not_suit_is_refused() {
    let folder = TempDir::new().unwrap();
    let number = |field: &str| column("x", TableFieldsSpec::Number(NumberSpec::new(field)));
    let list = |field: &str, kind, shape: &[usize]| {
        column("x", TableFieldsSpec::List(ListSpec::new(field, kind, shape.to_vec())))
    };
    let category = |field: &str, vocabulary| {
        let category = CategorySpec { field: field.into(), vocabulary, unknown: None };
        column("x", TableFieldsSpec::Category(category))
    };
    for how in How::all() {
        let path = write(folder.path(), "table", &table(&people(9)), how, 4);
        let size = match how.is_parquet() {
            true => "row 0: field 'image' has a list of 4 elements, expected 5",
            false => "expected a list of numbers, 5 of them",
        };
        for (column, words) in [
            (number("weight"), "the file has no field 'weight', only height, tall"),
            (number("word"), "expected integers, floats or booleans"),
            (number("image"), "field 'image' has the type"),
            (category("height", VocabularySpec::Ids), "expected strings, integers or booleans"),
            (list("image", ListKind::Float, &[5]), size),
            (list("height", ListKind::Float, &[1]), "expected a list of numbers"),
            (list("vector", ListKind::Integer, &[3]), "expected a list of integers"),
            (list("tokens", ListKind::Integer, &[4, 1]), "has a list of 2 elements, expected 4"),
            (list("tokens", ListKind::Integer, &[1, 2, 2]), "flat or of 3 levels"),
            (category("word", VocabularySpec::Ids), "is 'word 0', expected an integer of 32 bits"),
            (category("count", VocabularySpec::Words(vec!["0".into()])), "is '4000000000', expected a word"),
            (category("count", VocabularySpec::Ids), "row 1: field 'count' is '4000000000'"),
            (list("count list", ListKind::Bytes, &[1]), "is '4000000000', expected 0 to 255"),
        ] {
            let error = refused(how, &path, vec![column]);
            assert!(error.contains(words) && error.contains("table"), "{how:?}: {error}");
        }
    }
}

#[test]
fn booleans_and_large_integers_are_categories() {
    let folder = TempDir::new().unwrap();
    let fields: [(&str, ArrayRef); 2] = [
        ("flag", Arc::new(BooleanArray::from(vec![true, false]))),
        ("big", Arc::new(UInt64Array::from(vec![u64::MAX, i64::MAX as u64]))),
    ];
    let table = RecordBatch::try_from_iter(fields).unwrap();
    let (largest, large) = ("18446744073709551615", "9223372036854775807");
    for how in How::all() {
        let path = write(folder.path(), "table", &table, how, 4);
        let ids = CategorySpec { field: "flag".into(), vocabulary: VocabularySpec::Ids, unknown: None };
        let flag = CategorySpec::new("flag", &["false", "true"], None);
        let big = CategorySpec::new("big", &[large, largest], None);
        let columns = vec![column("x", TableFieldsSpec::Categories(vec![ids, flag, big]))];
        let read = rest(&*opened(&how.spec(vec![path.clone()], columns), 0).unwrap(), 0, 2).unwrap();
        assert_eq!(read, [[Column::I32(vec![1, 1, 1])], [Column::I32(vec![0, 0, 0])]]);
        for (field, got) in [("big", largest), ("flag", "true")] {
            let category = CategorySpec::new(field, &["0", "1", large], None);
            let error = refused(how, &path, vec![column("x", TableFieldsSpec::Category(category))]);
            assert!(error.contains(&format!("is '{got}', expected a word")), "{error}");
        }
    }
}

/// Checks that values of a fixed size are refused if this size differs from the spec's shape. Otherwise, a
/// file could make the rows of a batch larger than the spec says.
#[test]
fn values_of_a_fixed_size_have_the_size_of_the_shape() {
    let folder = TempDir::new().unwrap();
    let values = FixedSizeBinaryArray::try_from_iter([[1, 2, 3], [4, 5, 6]].iter()).unwrap();
    let table = RecordBatch::try_from_iter([("x", Arc::new(values) as ArrayRef)]).unwrap();
    for how in How::all() {
        let path = write(folder.path(), "table", &table, how, 4);
        let columns =
            |size| vec![column("x", TableFieldsSpec::List(ListSpec::new("x", ListKind::Bytes, [size])))];
        let read = rest(&*opened(&how.spec(vec![path.clone()], columns(3)), 0).unwrap(), 1, 2).unwrap();
        assert_eq!(read, [[Column::I32(vec![4, 5, 6])]]);
        let error = refused(how, &path, columns(4));
        assert!(
            error.contains("has the type FixedSizeBinary(3), expected a list of integers, or bytes, 4 of"),
            "{error}"
        );
    }
}

/// Makes a page with a long header: its statistics contain whole values of 20 000 bytes.
#[test]
fn pages_with_long_statistics_are_read() {
    let folder = TempDir::new().unwrap();
    let values = BinaryArray::from_iter_values((1..4).map(|value| vec![value; 20_000]));
    let table = RecordBatch::try_from_iter([("x", Arc::new(values) as ArrayRef)]).unwrap();
    let properties = WriterProperties::builder()
        .set_statistics_enabled(EnabledStatistics::Page)
        .set_statistics_truncate_length(None)
        .set_write_page_header_statistics(true)
        .set_dictionary_enabled(false)
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), table.schema(), Some(properties)).unwrap();
    writer.write(&table).unwrap();
    let (path, bytes) = (folder.path().join("table"), writer.into_inner().unwrap());
    let longest = bytes.windows(20_000).filter(|window| window.iter().all(|&byte| byte == 3)).count();
    assert!(longest > 1, "the header has a value, too");
    std::fs::write(&path, bytes).unwrap();
    let columns = vec![column("x", TableFieldsSpec::List(ListSpec::new("x", ListKind::Bytes, [20_000])))];
    let read = rest(&*opened(&How::PARQUET.spec(vec![path], columns), 0).unwrap(), 0, 2).unwrap();
    assert_eq!(read, [1, 2, 3].map(|value| [Column::I32(vec![value; 20_000])]));
}

#[test]
fn pages_that_are_packed_in_another_way_are_refused() {
    let folder = TempDir::new().unwrap();
    let how =
        How::Parquet { compression: Compression::LZ4, dictionary: true, version: WriterVersion::PARQUET_1_0 };
    let path = write(folder.path(), "table", &table(&people(9)), how, 4);
    let error = refused(how, &path, written::columns());
    assert!(error.contains("the pages are compressed with the older LZ4, expected Snappy"), "{error}");
}

#[test]
fn a_field_may_be_given_by_its_position() {
    let folder = TempDir::new().unwrap();
    for how in How::all() {
        let people = people(5);
        let path = write(folder.path(), "table", &table(&people), how, 2);
        let numbers = [FieldSpec::Index(1), FieldSpec::Index(0), FieldSpec::Index(1)].map(NumberSpec::new);
        let columns = vec![column("x", TableFieldsSpec::Numbers(numbers.into()))];
        let read = rest(&*opened(&how.spec(vec![path], columns), 0).unwrap(), 3, 2).unwrap();
        let (tall, height) = (f32::from(u8::from(people[3].tall)), people[3].height.unwrap());
        assert_eq!(read[0], [Column::F32(vec![tall, height, tall])]);
    }
}

#[test]
fn a_table_without_rows_has_no_examples() {
    let folder = TempDir::new().unwrap();
    for how in How::all() {
        let path = write(folder.path(), "table", &table(&[]), how, 4);
        let set = opened(&spec(how, vec![path]), 0).unwrap();
        assert_eq!(set.examples(), None);
        assert!(matches!(rest(&*set, 0, 5), Err(InputError::NoExample { .. })));
    }
}

#[test]
fn a_packed_stream_is_read_and_packed_parquet_is_refused() {
    let folder = TempDir::new().unwrap();
    let people = people(9);
    for how in How::all() {
        let plain = write(folder.path(), "table", &table(&people), how, 4);
        let packed = folder.path().join("table.gz");
        std::fs::write(&packed, gzip(&std::fs::read(&plain).unwrap())).unwrap();
        std::fs::remove_file(&plain).unwrap();
        // The name without `.gz` finds the packed file, too.
        for path in [&packed, &plain] {
            let read = opened(&spec(how, vec![path.clone()]), 0).and_then(|set| rest(&*set, 0, 4));
            match how.is_parquet() {
                false => assert_eq!(read.unwrap().len(), 9),
                true => {
                    let InputError::Table { file, problem } = read.unwrap_err() else { panic!("no table") };
                    assert_eq!((file, *problem), (packed.clone(), TableError::Packed { packing: "gzip" }));
                }
            }
        }
    }
}

#[test]
fn the_wrong_format_is_named() {
    let folder = TempDir::new().unwrap();
    let columns = || written::columns();
    let parquet = write(folder.path(), "a", &table(&people(3)), How::PARQUET, 4);
    let arrow = write(folder.path(), "b", &table(&people(3)), How::FILE, 4);
    let text = folder.path().join("c");
    std::fs::write(&text, b"FEA1 or any other text that is long enough").unwrap();
    assert!(
        refused(How::PARQUET, &arrow, columns()).contains("is no Parquet file: it begins with the bytes")
    );
    assert!(refused(How::FILE, &parquet, columns()).contains("is no Arrow file: it begins with the bytes"));
    assert!(refused(How::FILE, &text, columns()).contains("a Feather file of version 1"));
    let missing: PathBuf = folder.path().join("missing");
    assert!(refused(How::PARQUET, &missing, columns()).contains("do not exist"));
}

#[test]
fn parts_of_a_table_are_shared_by_file_and_by_pattern() {
    let folder = TempDir::new().unwrap();
    let people = people(12);
    for (at, part) in people.chunks(4).enumerate() {
        write(folder.path(), &format!("part-{at}.parquet"), &table(part), How::PARQUET, 3);
    }
    let address = format!("file://{}/part-*.parquet", folder.path().display());
    for pattern in [folder.path().join("part-*.parquet"), PathBuf::from(address)] {
        let set = opened(&spec(How::PARQUET, vec![pattern]), 0).unwrap();
        assert_eq!(set.examples(), Some(12));
        assert_eq!(
            rest(&*set.part(1, 3).unwrap(), 0, 9).unwrap()[..],
            [4, 5, 6, 7].map(|at: usize| people[at].values())
        );
    }
    let all: TableSpec = TableSpec { files: Vec::new(), columns: written::columns() };
    assert!(DatasetSpec::Parquet(all).validate().is_err(), "a set has files");
}
