//! Tests of `pushpull predict` with models that real tasks, or the library, have trained and saved.

use std::fs;
use std::path::Path;
use std::process::Command;

use pushpull::nn::{Layer, dense};
use pushpull::{
    CategorySpec, Cluster, CsvColumnSpec, CsvFieldsSpec, CsvSpec, DatasetSpec, Examples, GraphBuilder,
    InputSpec, Job as LibraryJob, MapSpec, Model, NumberSpec, StageSpec,
};
use serde_json::{Value, json};

use crate::harness::{Ended, Job, Program, Report, TinyDigits, example, tool, write_model};

/// Runs `pushpull predict` in a directory.
fn predict(dir: &Path, flags: &[&str]) -> Ended {
    let mut command: Command = tool();
    command.current_dir(dir).arg("predict").args(flags);
    Program::run(dir, "predict", &mut command)
}

/// Trains a job with `pushpull local`, saves its model in `dir`, and returns its report.
fn train(dir: &Path, job: &Job, flags: &[&str]) -> Report {
    let mut command = tool();
    command.current_dir(dir).args(["local", "--threads=1", "--save-model=model.safetensors"]);
    command.arg("--report=report.json").args(flags).arg("--job").arg(job.path());
    Program::run(dir, "local", &mut command).expect(0);
    Report::read(&dir.join("report.json"))
}

/// Returns the cells of each row of a CSV file, without its header.
fn rows(csv: &str) -> Vec<Vec<String>> {
    csv.lines().skip(1).map(|line| line.split(',').map(ToOwned::to_owned).collect()).collect()
}

#[test]
fn a_prediction_has_the_bits_of_the_jobs_evaluation() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path();
    let job = Job::with(dir, 60, &["--optimizer=adam", "--ema-decay=0.9", "--partitioner=fixed:2"]);
    let report = train(dir, &job, &["--ps=2", "--workers=2"]);
    let flags = ["model.safetensors", "--job=job.json"];
    let ended = predict(dir, &[&flags[..], &["--evaluate", "--output=json"]].concat()).expect(0);
    let evaluation: Value = serde_json::from_str(&ended.out).expect("JSON");
    let number = |value: &Value| value.as_f64().expect("a number");
    assert_eq!(number(&evaluation["loss"]), report.number("test_loss"), "the same shortest decimal");
    assert_eq!(number(&evaluation["metrics"]["accuracy"]), report.number("test_accuracy"));
    assert_eq!(evaluation["examples"], 500);

    let ended = predict(dir, &[&flags[..], &["--output=csv", "--to=all.csv"]].concat()).expect(0);
    assert_eq!(ended.out, "", "--to replaces standard output");
    let rows = rows(&fs::read_to_string(dir.join("all.csv")).expect("it was written"));
    let spec: Value = serde_json::from_str(&fs::read_to_string(job.path()).unwrap()).unwrap();
    let test: DatasetSpec = serde_json::from_value(spec["input"]["test"].clone()).unwrap();
    let examples = Examples::read(&test).unwrap();
    let expected = Model::load(dir.join("model.safetensors")).unwrap().predict(&examples).unwrap();
    let logits = expected.output("logits").expect("an output");
    let labels = examples.integers("labels").expect("labels");
    let mut right = 0;
    for (index, row) in rows.iter().enumerate() {
        assert_eq!(row[0], index.to_string());
        right += u32::from(row[1] == labels[index].to_string());
        let bits: Vec<u32> = row[2..].iter().map(|cell| cell.parse::<f32>().unwrap().to_bits()).collect();
        let expected: Vec<u32> = logits.row(index).unwrap().iter().map(|value| value.to_bits()).collect();
        assert_eq!(bits, expected, "example {index}");
    }
    assert_eq!((rows.len(), right), (500, (report.number("test_accuracy") * 500.0).round() as u32));
}

#[test]
fn an_example_saves_its_model_from_one_process() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path();
    let mut command = example();
    command.current_dir(dir).args(["--steps=30", "--report=report.json", "--save-model=m.safetensors"]);
    Program::run(dir, "example", &mut command).expect(0);
    let model = Model::load(dir.join("m.safetensors")).expect("it was saved");
    let examples = Examples::read(&DatasetSpec::Digits { seed: 1, examples: 5_000 }).unwrap();
    let crc = model.evaluate(&examples).unwrap().variables_crc32c;
    assert_eq!(f64::from(crc), Report::read(&dir.join("report.json")).number("variables_crc32c"));
}

#[test]
fn images_need_no_labels() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path();
    let digits = TinyDigits::write(dir);
    let job = Job::with(dir, 40, &["--data-dir", digits.dir().to_str().unwrap()]);
    train(dir, &job, &["--workers=1"]);
    let with_labels = predict(dir, &["model.safetensors", "--job=job.json"]).expect(0).out;
    assert_eq!(with_labels.lines().count(), 50);
    assert!(
        with_labels.lines().all(|line| line.parse::<u8>().is_ok_and(|class| class < 10)),
        "{with_labels}"
    );
    let (images, labels) = (TinyDigits::FILES[2], TinyDigits::FILES[3]);
    let pair = format!("--files={},{}", digits.file(images).display(), digits.file(labels).display());
    let named = predict(dir, &["model.safetensors", "--job=job.json", &pair]).expect(0).out;
    digits.remove(labels);
    let flag = format!("--images={}", digits.file(images).display());
    let without = predict(dir, &["model.safetensors", &flag]).expect(0).out;
    assert_eq!((&without, &named), (&with_labels, &with_labels));
}

/// Trains a model of two fields on a CSV file with the library, and saves it.
fn train_on_csv(dir: &Path) -> CsvSpec {
    let mut text = "left,kind,right\n".to_owned();
    (0..40).for_each(|row| text += &format!("{row},{},{}\n", ["no", "yes"][row % 2], row % 2));
    fs::write(dir.join("train.csv"), text).unwrap();
    let numbers = ["left", "right"].map(NumberSpec::new).to_vec();
    let column = |name: &str, fields| CsvColumnSpec { name: name.into(), fields };
    let label = CategorySpec::new("kind", &["no", "yes"], None);
    let csv = CsvSpec {
        files: vec![dir.join("train.csv")],
        columns: vec![
            column("features", CsvFieldsSpec::Numbers(numbers)),
            column("labels", CsvFieldsSpec::Category(label)),
        ],
        header: true,
        ..CsvSpec::default()
    };
    let mut g = GraphBuilder::new("fields");
    let features = g.input("features", [2]);
    let labels = g.labels("labels");
    let scores = dense("scores", 2).apply(&mut g, features);
    g.output("scores", scores);
    let loss = g.softmax_cross_entropy(scores, labels);
    let graph = g.finish(loss, &[]).unwrap();
    let mut input = InputSpec::new(DatasetSpec::Csv(csv.clone()), DatasetSpec::Csv(csv.clone()));
    input.map = vec![MapSpec::new("features", StageSpec::Scale { factor: 0.5, offset: 1.0 })];
    let trained = LibraryJob::new(graph, input).batch_size(8).train(Cluster::embedded(1, 1)).unwrap();
    trained.save(dir.join("model.safetensors")).unwrap();
    csv
}

#[test]
fn new_rows_need_only_the_fields_of_the_model() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path();
    let csv = train_on_csv(dir);
    let input = json!({ "csv": serde_json::to_value(csv).unwrap() });
    fs::write(dir.join("input.json"), input.to_string()).unwrap();
    fs::write(dir.join("new.csv"), "right,left\n0,2\n1,7\n").unwrap();
    let flags = ["model.safetensors", "--input=input.json", "--files=new.csv", "--output=json"];
    let lines = predict(dir, &flags).expect(0).out;
    let examples = Examples::f32("features", [2], vec![2.0, 0.0, 7.0, 1.0]).unwrap();
    let expected = Model::load(dir.join("model.safetensors")).unwrap().predict(&examples).unwrap();
    let classes = expected.classes("scores").expect("an output");
    for (index, line) in lines.lines().enumerate() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let row: Vec<f32> = serde_json::from_value(line["outputs"]["scores"].clone()).unwrap();
        assert_eq!(Some(&row[..]), expected.output("scores").unwrap().row(index));
        assert_eq!((&line["example"], &line["classes"]["scores"]), (&json!(index), &json!(classes[index])));
    }
    assert_eq!(lines.lines().count(), 2);
    let ended = predict(dir, &[&flags[..], &["--evaluate"]].concat()).expect(1);
    assert!(ended.err.contains("'kind'") && ended.err.lines().count() == 1, "{}", ended.err);
}

#[test]
fn a_model_without_a_graph_needs_its_job() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path();
    let job = Job::new(dir, 10);
    let spec: Value = serde_json::from_str(&fs::read_to_string(job.path()).unwrap()).unwrap();
    write_model(&dir.join("model.safetensors"), &spec, 0.5);
    fs::write(dir.join("input.json"), r#"{"digits": {"seed": 1, "examples": 3}}"#).unwrap();
    let ended = predict(dir, &["model.safetensors", "--input=input.json"]).expect(1);
    assert!(ended.err.contains("--job") && ended.err.lines().count() == 1, "{}", ended.err);
    let flags = ["model.safetensors", "--input=input.json", "--job=job.json"];
    assert_eq!(predict(dir, &flags).expect(0).out, "0\n0\n0\n", "all scores are equal");
}

#[test]
fn the_models_own_graph_and_stages_are_used() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path();
    let job = Job::new(dir, 10);
    train(dir, &job, &["--workers=1"]);
    let flags = ["model.safetensors", "--job=job.json", "--output=csv"];
    let own = predict(dir, &flags).expect(0);
    assert_eq!(own.err, "");
    let mut spec: Value = serde_json::from_str(&fs::read_to_string(job.path()).unwrap()).unwrap();
    spec["input"]["map"] =
        json!([{"column": "features", "stage": {"scale": {"factor": -1.0, "offset": 3.0}}}]);
    fs::write(job.path(), spec.to_string()).unwrap();
    let other = predict(dir, &flags).expect(0);
    assert_eq!(other.out, own.out);
    assert!(
        other.err.starts_with("warning: the map stages of --job differ") && other.err.lines().count() == 1
    );
}

#[test]
fn what_cannot_be_predicted_is_one_line() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path();
    train_on_csv(dir);
    fs::write(dir.join("digits.json"), r#"{"digits": {"seed": 1, "examples": 3}}"#).unwrap();
    fs::write(dir.join("wrong.json"), r#"{"digit": {}}"#).unwrap();
    for (flags, status, expected) in [
        (&["model.safetensors"][..], 2, "--input"),
        (&["model.safetensors", "--images=x", "--evaluate"], 2, "--evaluate"),
        (&["model.safetensors", "--input=digits.json", "--files=x"], 2, "names no files"),
        (&["model.safetensors", "--input=none.json"], 1, "none.json"),
        (&["model.safetensors", "--input=wrong.json"], 1, "expected one of `idx`"),
        (&["model.safetensors", "--images=none"], 1, "none"),
        (&["model.safetensors", "--input=digits.json"], 1, "'features'"),
        (&["none.safetensors", "--input=digits.json"], 1, "none.safetensors"),
        (&["model.safetensors", "--input=digits.json", "--to=none/x"], 1, "--to"),
    ] {
        let ended = predict(dir, flags).expect(status);
        assert!(ended.err.contains(expected) && ended.err.lines().count() == 1, "{flags:?}: {}", ended.err);
        assert_eq!(ended.out, "", "{flags:?}");
    }
    let mut command = example();
    let ended = Program::run(dir, "example", command.args(["--steps=1", "--save-model=a b"])).expect(2);
    assert!(ended.err.contains("--save-model"), "{}", ended.err);
}
