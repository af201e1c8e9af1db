//! Tests valid and damaged CSV files, and the real Adult data set if it is present.

use proptest::prelude::*;
use pushpull_messages::input::{
    CategorySpec, ColumnSpec, CsvColumnSpec, CsvFieldsSpec, CsvSpec, DatasetSpec, NumberSpec, VocabularySpec,
};
use pushpull_messages::tensor::TensorSpec;
use tempfile::TempDir;

use crate::tests::damaged::{bad_inputs, data_dir, gzip, write};
use crate::tests::describe;
use crate::{Column, Datasets, InMemory, InputError, Reading, RecordError, load, load_from};

fn column(name: &str, fields: CsvFieldsSpec) -> CsvColumnSpec {
    CsvColumnSpec { name: name.to_owned(), fields }
}

/// Returns a spec with three columns: the first consists of two numbers, the second of two categories, and
/// the third of a label.
fn spec() -> CsvSpec {
    CsvSpec {
        columns: vec![
            column(
                "numeric",
                CsvFieldsSpec::Numbers(vec![
                    NumberSpec::new(0),
                    NumberSpec { missing: Some(-1.0), ..NumberSpec::new(2) },
                ]),
            ),
            column(
                "categorical",
                CsvFieldsSpec::Categories(vec![
                    CategorySpec::new(1, &["red", "blue"], Some(2)),
                    CategorySpec { field: 3.into(), vocabulary: VocabularySpec::Ids, unknown: Some(-7) },
                ]),
            ),
            column(
                "label",
                CsvFieldsSpec::Category(CategorySpec::map(4, &[("no", 0), ("no.", 0), ("yes", 1)])),
            ),
        ],
        trim: true,
        ..CsvSpec::default()
    }
}

#[test]
fn an_open_quote_hides_no_rows() {
    let good = "1,red,2,7,no\n3,blue,4,8,yes\n";
    assert_eq!(read(&spec(), good.as_bytes()).unwrap().len(), 2);
    // A quote in a field that is used, in a field that is ignored, and at the very end.
    for (text, line) in [
        ("1,red,2,7,no\n3,\"blue,4,8,yes\n5,red,6,9,no\n", 2),
        ("1,red,2,7,no,\"oops\n3,blue,4,8,yes\n5,red,6,9,no\n", 1),
        ("1,red,2,7,no\n3,blue,4,8,\"yes", 2),
        ("1,red,2,7,no\n3,blue,4,8,yes\n\"x", 3),
    ] {
        let error = read(&spec(), text.as_bytes()).unwrap_err();
        let InputError::Row { line: found, problem, .. } = &error else { panic!("{error}") };
        assert_eq!((found, &**problem), (&line, &RecordError::OpenQuote), "{text}");
    }
    // Quotes that are closed may contain line breaks, and a file may end without one.
    let quoted = "1,red,2,7,no,\"two\nlines\"\n3,blue,4,8,\"yes\"";
    assert_eq!(read(&spec(), quoted.as_bytes()).unwrap().len(), 2);
}

fn read(spec: &CsvSpec, bytes: &[u8]) -> Result<InMemory, InputError> {
    let folder = TempDir::new().unwrap();
    let files = vec![write(folder.path(), "data.csv", bytes)];
    let spec = DatasetSpec::Csv(CsvSpec { files, ..spec.clone() });
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

fn columns(set: &InMemory) -> Vec<Column> {
    let mut columns = Vec::new();
    set.fill(&(0..set.len() as u32).collect::<Vec<_>>(), &mut columns);
    columns
}

#[test]
fn fields_become_columns() {
    let rows = "1.5, red,2,  12, no\n\n-3e2,green,,x,yes\r\n\"7\",\"blue\" ,8,,no.";
    let expected = [
        Column::F32(vec![1.5, 2.0, -300.0, -1.0, 7.0, 8.0]),
        Column::I32(vec![0, 12, 2, -7, 1, -7]),
        Column::I32(vec![0, 1, 0]),
    ];
    for bytes in [rows.as_bytes().to_vec(), gzip(rows.as_bytes())] {
        let set = read(&spec(), &bytes).unwrap();
        assert_eq!(columns(&set), expected);
        let named = |name: &str, example| ColumnSpec { name: name.to_owned(), example };
        assert_eq!(
            set.columns(),
            [
                named("numeric", TensorSpec::f32([2])),
                named("categorical", TensorSpec::i32([2])),
                named("label", TensorSpec::i32([])),
            ]
        );
    }
}

#[test]
fn fields_are_found_by_name_after_skipped_lines() {
    let spec = CsvSpec {
        columns: vec![
            column("x", CsvFieldsSpec::Number(NumberSpec::new("width"))),
            column("y", CsvFieldsSpec::Number(NumberSpec::new("a name; of two"))),
        ],
        header: true,
        delimiter: ';',
        skip_lines: 2,
        ..CsvSpec::default()
    };
    let text = "a comment\n\"another\n\"a name; of two\";more;width\n1;2;3\n4;5;6\n";
    assert_eq!(
        columns(&read(&spec, text.as_bytes()).unwrap()),
        [Column::F32(vec![3.0, 6.0]), Column::F32(vec![1.0, 4.0])]
    );
    let error = read(&spec, b"\n\na;b\n1;2\n").unwrap_err().to_string();
    assert!(error.contains("line 3: the header has no field 'width', only a, b:"), "{error}");
    let error = read(&spec, b"\n\n").unwrap_err();
    assert!(matches!(error, InputError::NoExample { .. }), "{error}");
    let header_only = read(&spec, b"\n\na name; of two;width\n").unwrap_err();
    assert!(header_only.to_string().contains("'a name; of two'"), "{header_only}");
    let error = read(&spec, b"\n\n\"a name; of two\";width\n").unwrap_err();
    assert!(matches!(error, InputError::NoExample { .. }), "{error}");
}

#[test]
fn a_row_with_more_fields_than_the_others_is_damaged() {
    let numbers = ["a", "b"].map(NumberSpec::new).to_vec();
    let by_name = CsvSpec {
        columns: vec![column("x", CsvFieldsSpec::Numbers(numbers))],
        header: true,
        ..CsvSpec::default()
    };
    let numbers = [0u32, 1].map(NumberSpec::new).to_vec();
    let by_place =
        CsvSpec { columns: vec![column("x", CsvFieldsSpec::Numbers(numbers))], ..CsvSpec::default() };
    for (spec, text) in [(&by_name, "a,b,c\n1,2,3\n4,5\n6,7,8,9\n"), (&by_place, "1,2,3\n4,5\n6,7,8,9\n")] {
        let error = read(spec, text.as_bytes()).unwrap_err().to_string();
        let line = text.lines().count();
        assert!(error.contains(&format!("line {line}: the row has 4 fields, expected at most 3")), "{error}");
        let fewer = text.rsplit_once("6,").unwrap().0;
        assert_eq!(columns(&read(spec, fewer.as_bytes()).unwrap()), [Column::F32(vec![1.0, 2.0, 4.0, 5.0])]);
    }
}

#[test]
fn a_damaged_first_row_condemns_no_other() {
    let folder = TempDir::new().unwrap();
    let files = vec![write(folder.path(), "data.csv", b"title\n1,2,3\n4,5,6\n7,8,9,10\n")];
    let numbers = [0u32, 1].map(NumberSpec::new).to_vec();
    let columns_spec = vec![column("x", CsvFieldsSpec::Numbers(numbers))];
    let spec = DatasetSpec::Csv(CsvSpec { files, columns: columns_spec, ..CsvSpec::default() });
    let datasets = Datasets::default();
    let read =
        |skip_bad_records| load_from(&spec, &Reading { skip_bad_records, ..Reading::plain(&datasets) });
    assert_eq!(columns(&read(2).unwrap()), [Column::F32(vec![1.0, 2.0, 4.0, 5.0])]);
    assert!(read(1).unwrap_err().to_string().contains("line 4: the row has 4 fields, expected at most 3"));
}

#[test]
fn an_error_names_the_bad_row_and_field() {
    let refused = |text: &str| read(&spec(), text.as_bytes()).unwrap_err().to_string();
    let good = "1,red,2,3,no\n";
    for (row, words) in [
        ("x,red,2,3,no", "field 0 is 'x', expected a finite number"),
        (",red,2,3,no", "field 0 is '', expected a finite number"),
        ("nan,red,2,3,no", "field 0 is 'nan', expected a finite number"),
        ("1e99,red,2,3,no", "field 0 is '1e99'"),
        ("1,red,2,3,maybe", "field 4 is 'maybe', expected a word of the vocabulary"),
        ("1,red,2,3", "the row has 4 fields and no field 4"),
        ("|1x3 Cross validator", "field 0 is '|1x3"),
    ] {
        let error = refused(&format!("{good}{row}\n{good}"));
        assert!(error.contains(words) && error.contains("data.csv, line 2"), "{error}");
        assert!(refused(row).contains("line 1"));
    }
    let error = refused(&format!("1,red,2,3,\"{}\n\n\"", "very long ".repeat(99)));
    assert!(error.len() < 200 && error.lines().count() == 1, "{error}");
    let bytes = read(&spec(), b"\xff\xfe,red,2,3,no").unwrap_err();
    assert!(
        matches!(&bytes, InputError::Row { line: 1, problem, .. } if matches!(**problem, RecordError::Field { .. }))
    );
}

#[test]
fn bad_files_are_refused() {
    let good = "1,red,2,3,no\n4,blue,5,6,yes";
    // A file that is cut after a row is a shorter valid file, with or without the line end of that row.
    bad_inputs(good.as_bytes(), |bytes| read(&spec(), bytes).map(drop), &[12, 13]);
}

#[test]
fn an_unclosed_quote_does_not_read_the_file_into_memory() {
    let mut text = b"1,red,2,3,no\n\"".to_vec();
    text.resize(20 << 20, b'x');
    let error = read(&spec(), &gzip(&text)).unwrap_err();
    assert!(error.to_string().contains("the limit of one row"), "{error}");
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), pack: bool) {
        let read = read(&spec(), &if pack { gzip(&bytes) } else { bytes });
        if let Err(error) = read {
            prop_assert_eq!(error.to_string().lines().count(), 1);
        }
    }

    #[test]
    fn any_row_of_fragments_is_read_or_refused(
        pieces in prop::collection::vec(prop::sample::select(vec!["1", "red", ",", ",", "\n", "\"", "no", " ", "-", "9999999999"]), 0..60),
    ) {
        let _ = read(&spec(), pieces.concat().as_bytes());
    }

    #[test]
    fn rows_are_read_as_they_were_written(rows in prop::collection::vec((any::<i16>(), 0usize..3, any::<i32>(), any::<bool>()), 1..30)) {
        let words = ["red", "blue", "?"];
        let text: String = rows
            .iter()
            .map(|&(x, word, id, yes)| format!("{x},{},{},{id},{}\n", words[word], f32::from(x) / 8.0, if yes { "yes" } else { "no" }))
            .collect();
        let set = read(&spec(), text.as_bytes()).unwrap();
        let expected = [
            Column::F32(rows.iter().flat_map(|row| [f32::from(row.0), f32::from(row.0) / 8.0]).collect()),
            Column::I32(rows.iter().flat_map(|row| [row.1 as i32, row.2]).collect()),
            Column::I32(rows.iter().map(|row| row.3.into()).collect()),
        ];
        prop_assert_eq!(columns(&set), expected);
    }
}

#[test]
fn reads_the_real_adult() {
    let Some(folder) = data_dir("adult") else { return };
    let sexes = ["Female", "Male"];
    let spec = |file: &str, skip_lines| {
        DatasetSpec::Csv(CsvSpec {
            files: vec![folder.join(file)],
            columns: vec![
                column("numeric", CsvFieldsSpec::Numbers([0, 2, 4, 10, 11, 12].map(NumberSpec::new).into())),
                column(
                    "categorical",
                    CsvFieldsSpec::Categories(vec![
                        CategorySpec::new(1, &["Private", "State-gov", "Local-gov"], Some(3)),
                        CategorySpec::new(9, &sexes, None),
                    ]),
                ),
                column(
                    "labels",
                    CsvFieldsSpec::Category(CategorySpec::map(
                        14,
                        &[("<=50K", 0), ("<=50K.", 0), (">50K", 1), (">50K.", 1)],
                    )),
                ),
            ],
            trim: true,
            skip_lines,
            ..CsvSpec::default()
        })
    };
    for (file, skip_lines, below, above) in [("adult.data", 0, 24_720, 7841), ("adult.test", 1, 12_435, 3846)]
    {
        let spec = spec(file, skip_lines);
        assert_eq!(describe(&spec, &[]).unwrap().examples, below + above);
        let set = load(&spec, None).unwrap();
        let all = columns(&set);
        let labels = all[2].i32().unwrap();
        assert_eq!(labels.iter().filter(|&&label| label == 0).count() as u64, below);
        assert_eq!(labels.iter().filter(|&&label| label == 1).count() as u64, above);
        let ages = all[0].f32().unwrap().chunks(6).map(|row| row[0]);
        assert!(ages.clone().all(|age| (17.0..=90.0).contains(&age)));
    }
    let error = load(&spec("adult.test", 0), None).unwrap_err();
    assert!(error.to_string().contains("adult.test, line 1: field 0 is '|1x3 Cross validator',"), "{error}");
}
