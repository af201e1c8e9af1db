//! Tests of input specs: round trips through JSON, defaults in job files, and invalid specs.

use super::*;
use crate::fixtures::datasets::{every_dataset, number};

#[test]
fn every_data_set_round_trips() {
    for dataset in every_dataset() {
        dataset.validate().unwrap();
        let json = serde_json::to_string(&dataset).unwrap();
        assert_eq!(serde_json::from_str::<DatasetSpec>(&json).unwrap(), dataset, "{json}");
        let bytes = rmp_serde::to_vec(&dataset).unwrap();
        assert_eq!(rmp_serde::from_slice::<DatasetSpec>(&bytes).unwrap(), dataset, "{json}");
    }
}

#[test]
fn a_job_file_may_leave_out_defaults() {
    let read = |json: &str| serde_json::from_str::<DatasetSpec>(json);
    let csv = r#"{"csv": {"files": ["a"], "columns": [{"name": "x", "fields": {"number": {"field": 2}}}]}}"#;
    let DatasetSpec::Csv(csv) = read(csv).unwrap() else { panic!("no csv") };
    assert_eq!((csv.header, csv.delimiter, csv.skip_lines, csv.trim), (false, ',', 0, false));
    let DatasetSpec::Text(text) = read(r#"{"text": {"file": "a", "windows": {"length": 9}}}"#).unwrap()
    else {
        panic!("no text")
    };
    assert_eq!(text.windows, WindowsSpec::every(9, 0.0, 1.0));
    for unknown in [
        r#"{"text": {"file": "a", "windows": {"length": 9, "stirde": 1}}}"#,
        r#"{"csv": {"files": [], "columns": [], "quote": "'"}}"#,
        r#"{"cifar10": {"file": "a"}}"#,
        r#"{"parquet": {"files": ["a"], "columns": [], "header": true}}"#,
        r#"{"orc": {}}"#,
    ] {
        assert!(read(unknown).is_err(), "{unknown}");
    }
}

#[test]
fn the_job_file_names_the_fields_of_a_table() {
    let json = r#"{"parquet": {"files": ["train-*.parquet"], "columns": [
        {"name": "numbers", "fields": {"numbers": [{"field": "age"}, {"field": "hours", "missing": 0}]}},
        {"name": "image", "fields": {"list": {"field": "pixels", "kind": "pixels", "shape": [28, 28]}}},
        {"name": "labels", "fields": {"category": {"field": 7, "vocabulary": {"words": ["cat", "dog"]}}}}]}}"#;
    let DatasetSpec::Parquet(table) = serde_json::from_str(json).unwrap() else { panic!("no table") };
    let columns: Vec<ColumnSpec> = table.columns.iter().map(TableColumnSpec::column).collect();
    assert_eq!(ColumnSpec::list(&columns), "'numbers' f32[2], 'image' f32[28, 28], 'labels' i32[]");
    let fields = table.columns.iter().flat_map(TableColumnSpec::fields).map(FieldSpec::to_string);
    assert_eq!(fields.collect::<Vec<_>>().join(", "), "field 'age', field 'hours', field 'pixels', field 7");
    for kind in [ListKind::Float, ListKind::Integer, ListKind::Pixels, ListKind::Bytes] {
        let json = serde_json::to_string(&kind).unwrap();
        assert_eq!(serde_json::from_str::<ListKind>(&json).unwrap(), kind);
    }
}

#[test]
fn invalid_tables_are_refused() {
    let table = |columns| TableSpec { files: vec!["a".into()], columns };
    let refused = |columns: Vec<TableColumnSpec>| {
        let error = DatasetSpec::Parquet(table(columns.clone())).validate().unwrap_err();
        assert_eq!(DatasetSpec::Arrow(table(columns)).validate().unwrap_err(), error);
        error.to_string()
    };
    let x = |fields| vec![TableColumnSpec::new("x", fields)];
    let list = |shape: &[usize]| TableFieldsSpec::List(ListSpec::new("f", ListKind::Float, shape.to_vec()));
    let bad_number = NumberSpec { missing: Some(f32::NAN), ..number("f") };
    let twice = CategorySpec::new("f", &["a", "a"], None);
    assert!(refused(vec![]).contains("the number of columns"));
    assert!(refused(x(TableFieldsSpec::Numbers(vec![]))).contains("the number of fields of column 'x'"));
    assert!(refused(x(list(&[0]))).contains("the shape of column 'x'"));
    assert!(refused(x(list(&[1 << 20, 1 << 20]))).contains("the shape of column 'x'"));
    assert!(refused(x(TableFieldsSpec::Number(bad_number))).contains("the value of an empty field 'f'"));
    assert!(refused(x(TableFieldsSpec::Category(twice))).contains("'a' twice"));
    let escape = CategorySpec::new("f", &["a\x1b[31m", "a\x1b[31m"], None);
    let error = refused(x(TableFieldsSpec::Category(escape)));
    assert!(error.contains("'a\\u{1b}[31m' twice") && !error.contains(char::is_control), "{error}");
    assert!(refused(x(TableFieldsSpec::Number(number("a\nb")))).contains("a field of column 'x'"));
    let fields = TableFieldsSpec::Number(number("f"));
    assert!(refused(vec![TableColumnSpec::new("", fields)]).contains("the name of column 0"));
}

#[test]
fn only_needed_columns_are_read_where_the_format_allows_it() {
    for dataset in every_dataset() {
        assert_eq!(dataset.with_columns(|_| true), dataset);
        assert_eq!(dataset.with_columns(|_| false), dataset, "a data set has at least one column");
        let first = match &dataset {
            DatasetSpec::Csv(csv) => csv.columns[0].name.clone(),
            DatasetSpec::TfRecord(records) => records.features[0].column.clone(),
            DatasetSpec::Parquet(table) | DatasetSpec::Arrow(table) => table.columns[0].name.clone(),
            _ => continue,
        };
        let part = dataset.with_columns(|name| name == first);
        part.validate().unwrap();
        match part {
            DatasetSpec::Csv(csv) => assert!(csv.columns.iter().all(|column| column.name == first)),
            DatasetSpec::TfRecord(all) => assert!(all.features.iter().all(|own| own.column == first)),
            DatasetSpec::Parquet(table) | DatasetSpec::Arrow(table) => {
                assert!(table.columns.iter().all(|column| column.name == first));
            }
            _ => unreachable!("the format stays"),
        }
    }
}

#[test]
fn invalid_data_sets_are_refused() {
    let refused = |dataset: &DatasetSpec| dataset.validate().unwrap_err().to_string();
    let text = |windows| DatasetSpec::Text(TextSpec { file: "a".into(), windows });
    let windows = WindowsSpec::every(8, 0.0, 1.0);
    assert!(refused(&text(WindowsSpec { length: 0, ..windows })).contains("windows' length"));
    assert!(refused(&text(WindowsSpec { stride: 0, ..windows })).contains("windows' stride"));
    for (begin, end) in [(0.5, 0.5), (0.6, 0.5), (-0.1, 1.0), (0.0, 1.1), (f64::NAN, 1.0), (0.0, f64::NAN)] {
        assert!(refused(&text(WindowsSpec { begin, end, ..windows })).contains("part of the text"));
    }
    assert!(refused(&DatasetSpec::Cifar10 { files: vec![] }).contains("number of files"));
    assert!(
        refused(&DatasetSpec::Cifar10 { files: vec!["a".into(); FILES_MAX + 1] }).contains("number of files")
    );

    let csv =
        |columns: Vec<CsvColumnSpec>| CsvSpec { files: vec!["a".into()], columns, ..CsvSpec::default() };
    let x = |fields| CsvColumnSpec { name: "x".into(), fields };
    assert!(refused(&DatasetSpec::Csv(csv(vec![]))).contains("number of columns"));
    assert!(
        refused(&DatasetSpec::Csv(csv(vec![x(CsvFieldsSpec::Numbers(vec![]))])))
            .contains("fields of column 'x'")
    );
    let named = csv(vec![x(CsvFieldsSpec::Number(number("width")))]);
    assert!(refused(&DatasetSpec::Csv(named.clone())).contains("without a header"));
    assert!(DatasetSpec::Csv(CsvSpec { header: true, ..named.clone() }).validate().is_ok());
    for delimiter in ['é', '"', '\n'] {
        let csv = CsvSpec { delimiter, header: true, ..named.clone() };
        assert!(refused(&DatasetSpec::Csv(csv)).contains("delimiter"));
    }
    let twice = csv(vec![x(CsvFieldsSpec::Category(CategorySpec::new(0, &["a", "b", "a"], None)))]);
    assert!(refused(&DatasetSpec::Csv(twice)).contains("'a' twice"));

    let records = |features| DatasetSpec::TfRecord(TfRecordSpec { files: vec!["a".into()], features });
    assert!(refused(&records(vec![])).contains("number of features"));
    for shape in [vec![0], vec![1 << 20, 1 << 20], vec![usize::MAX, 2]] {
        let shape = crate::tensor::Shape(shape);
        let feature = FeatureSpec::new("f", "c", FeatureKind::Float, shape);
        assert!(refused(&records(vec![feature])).contains("shape of feature 'f'"));
    }
    let linear = |weights, bias| DatasetSpec::Linear { seed: 0, examples: 1, weights, bias, noise: 0.0 };
    assert!(refused(&linear(vec![], 0.0)).contains("number of weights"));
    assert!(refused(&linear(vec![f32::NAN], 0.0)).contains("finite"));
    assert!(refused(&linear(vec![1.0], f32::INFINITY)).contains("finite"));
}

#[test]
fn an_invalid_name_is_refused() {
    let digits = DatasetSpec::Digits { seed: 0, examples: 1 };
    let csv = |name: &str, field: &str| {
        let columns = vec![CsvColumnSpec { name: name.into(), fields: CsvFieldsSpec::Number(number(field)) }];
        let csv = CsvSpec { files: vec!["a".into()], columns, header: true, ..CsvSpec::default() };
        InputSpec::new(DatasetSpec::Csv(csv), digits.clone())
    };
    let record = |feature: &str, column: &str| {
        let features = vec![FeatureSpec::new(feature, column, FeatureKind::Float, [1])];
        let records = TfRecordSpec { files: vec!["a".into()], features };
        InputSpec::new(digits.clone(), DatasetSpec::TfRecord(records))
    };
    let map = |column: &str| InputSpec {
        map: vec![MapSpec::new(column, StageSpec::RandomFlip)],
        ..InputSpec::new(digits.clone(), digits.clone())
    };
    let good = "g".repeat(NAME_BYTES_MAX);
    for input in [csv(&good, &good), record(&good, &good), map(&good)] {
        input.validate().unwrap();
    }
    for bad in ["", "a\nb", "\u{7f}", &"b".repeat(NAME_BYTES_MAX + 1), &"é".repeat(NAME_BYTES_MAX)] {
        for (input, words) in [
            (csv(bad, "f"), "the name of column 0 must"),
            (csv("c", bad), "the name of a field of column 'c' must"),
            (record(bad, "c"), "the name of feature 0 must"),
            (record("f", bad), "the name of the column of feature 'f' must"),
            (map(bad), "the name of a map stage's column must"),
        ] {
            let error = input.validate().unwrap_err().to_string();
            assert!(error.contains(words) && error.len() < 512, "{error}");
            assert!(!error.chars().any(char::is_control), "{error:?}");
        }
    }
}

#[test]
fn the_value_of_an_empty_field_must_be_finite() {
    for missing in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let field = NumberSpec { missing: Some(missing), ..number(3) };
        let columns = vec![CsvColumnSpec {
            name: "x".into(),
            fields: CsvFieldsSpec::Numbers(vec![NumberSpec { missing: Some(1.0), ..number(2) }, field]),
        }];
        let csv = CsvSpec { files: vec!["a".into()], columns, ..CsvSpec::default() };
        let error = DatasetSpec::Csv(csv).validate().unwrap_err().to_string();
        let expected = format!("column 'x': the value of an empty field 3 must be finite, but is {missing}");
        assert!(error.contains(&expected), "{error}");
    }
}

#[cfg(unix)]
#[test]
fn a_path_that_is_not_utf8_is_refused() {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    let bad = OsString::from_vec(vec![0xff]);
    for dataset in every_dataset() {
        let changed = dataset.try_map_files(|_| Ok::<_, ()>(bad.clone().into())).unwrap();
        assert_eq!(changed.files().len(), dataset.files().len());
        assert_eq!(changed.validate().is_err(), !dataset.files().is_empty());
    }
}

#[test]
fn a_job_file_of_two_sets_has_default_settings() {
    let digits = |seed| DatasetSpec::Digits { seed, examples: 9 };
    let json = r#"{"train": {"digits": {"seed": 1, "examples": 9}}, "test": {"digits": {"seed": 2, "examples": 9}}}"#;
    let input: InputSpec = serde_json::from_str(json).unwrap();
    assert_eq!(input, InputSpec::new(digits(1), digits(2)));
    assert!(input.validate().is_ok());
    assert!(
        serde_json::from_str::<InputSpec>(&json.replace("\"test\"", "\"shufle\": \"none\", \"test\""))
            .is_err()
    );
}

#[test]
fn every_stage_round_trips_and_is_checked() {
    let digits = |seed| DatasetSpec::Digits { seed, examples: 9 };
    let usual = InputSpec::new(digits(1), digits(2));
    let map = |stage| vec![MapSpec::new("features", stage)];
    let input = InputSpec {
        shard: ShardSpec::Off,
        shuffle: ShuffleSpec::Buffer(100),
        repeat: RepeatSpec::Epochs(3),
        map: [
            map(StageSpec::Scale { factor: 2.0, offset: 1.0 }),
            map(StageSpec::Standardise { mean: vec![0.5], stddev: vec![0.2] }),
            map(StageSpec::OneHot { classes: 10 }),
            map(StageSpec::RandomCrop { pad: 4, size: [32, 32] }),
            map(StageSpec::RandomFlip),
        ]
        .concat(),
        prefetch: 8,
        ..usual.clone()
    };
    input.validate().unwrap();
    let json = serde_json::to_string(&input).unwrap();
    assert_eq!(serde_json::from_str::<InputSpec>(&json).unwrap(), input, "{json}");
    let bytes = rmp_serde::to_vec(&input).unwrap();
    assert_eq!(rmp_serde::from_slice::<InputSpec>(&bytes).unwrap(), input);

    let bad = |stage| InputSpec { map: map(stage), ..usual.clone() };
    let standardise = |mean: &[f32], stddev: &[f32]| {
        bad(StageSpec::Standardise { mean: mean.to_vec(), stddev: stddev.to_vec() })
    };
    for (input, words) in [
        (InputSpec { prefetch: 0, ..usual.clone() }, "prefetch must be 1 to 64, but is 0"),
        (InputSpec { prefetch: 65, ..usual.clone() }, "prefetch"),
        (InputSpec { shuffle: ShuffleSpec::Buffer(0), ..usual.clone() }, "shuffle buffer"),
        (InputSpec { repeat: RepeatSpec::Epochs(0), ..usual.clone() }, "number of epochs"),
        (bad(StageSpec::Scale { factor: f32::NAN, offset: 0.0 }), "the scale of column 'features'"),
        (standardise(&[1.0], &[1.0, 2.0]), "1 means and 2 standard deviations"),
        (standardise(&[], &[]), "0 means"),
        (standardise(&[f32::INFINITY], &[1.0]), "a mean"),
        (standardise(&[0.0], &[0.0]), "a standard deviation"),
        (standardise(&[0.0], &[f32::NAN]), "a standard deviation"),
        (bad(StageSpec::OneHot { classes: 0 }), "number of classes"),
        (bad(StageSpec::RandomCrop { pad: 1 << 20, size: [1, 1] }), "the border"),
        (bad(StageSpec::RandomCrop { pad: 1, size: [0, 1] }), "the window's size"),
    ] {
        let error = input.validate().unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}
