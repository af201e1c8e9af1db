//! Tests trained models: their values, predictions, evaluations and files.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use pushpull_input::{Column, Datasets, Reading, Storage, from_fn, open};
use pushpull_messages::id::NodeId;
use pushpull_messages::input::{ColumnSpec, StageSpec};
use pushpull_messages::job::JobSpec;
use pushpull_messages::tensor::TensorSpec;
use tempfile::TempDir;

use super::*;
use crate::nn::{Layer, batch_norm, dense, dropout};
use crate::{
    Cluster, DatasetSpec, GraphBuilder, InputSpec, Job, OptimizerSpec, ReductionOp, SyncSpec, Trained,
};

/// Returns a graph with labels, dropout and moving statistics, which training and prediction treat
/// differently. Its metric is the mean of its only output.
fn graph() -> GraphSpec {
    let mut g = GraphBuilder::new("plane");
    let features = g.input("features", [3]);
    let labels = g.input("labels", []);
    let x = dense("hidden", 4).relu().apply(&mut g, features);
    let x = batch_norm("norm").apply(&mut g, x);
    let x = dropout(0.5).apply(&mut g, x);
    let x = dense("plane", 1).apply(&mut g, x);
    g.output("height", x);
    let mean = g.reduce(ReductionOp::Mean, x, &[0, 1], false);
    let heights = g.reshape(x, []);
    let loss = g.mean_squared_error(heights, labels);
    g.finish(loss, &[("mean", mean)]).unwrap()
}

fn points(seed: u64, examples: u64) -> DatasetSpec {
    DatasetSpec::Linear { seed, examples, weights: vec![3.0, -2.0, 0.5], bias: 1.0, noise: 0.1 }
}

fn job() -> Job {
    let input = InputSpec::new(points(0, 600), points(1, 300));
    Job::new(graph(), input).optimizer(OptimizerSpec::sgd(0.05)).sync(SyncSpec::SYNC).batch_size(20).epochs(2)
}

fn trained() -> Trained {
    job().averages(0.9).train(Cluster::embedded(2, 2)).unwrap()
}

fn test_set() -> Examples {
    Examples::read(&points(1, 300)).unwrap()
}

#[test]
fn a_job_returns_its_report_and_its_values() {
    let trained = trained();
    // 600 examples are read twice, and each synchronous update takes two batches of 20.
    assert_eq!((trained.report.updates_applied, trained.report.steps), (30, 30));
    let names: Vec<&str> = trained.values().map(|(name, _)| name).collect();
    let expected: Vec<String> = graph().variables.into_iter().map(|variable| variable.name).collect();
    assert_eq!(names, expected);
    let kernel = trained.value("hidden/kernel").unwrap();
    assert_eq!((kernel.shape, kernel.values.len()), (&[3, 4][..], 12));
    assert_eq!(kernel.row(2), Some(&kernel.values[8..12]));
    assert_eq!((kernel.row(3), trained.value("none").is_none()), (None, true));
    let average = trained.average("hidden/kernel").unwrap();
    assert_ne!(average.values, kernel.values, "the average follows the value");
    assert_eq!(trained.model().value("hidden/kernel").unwrap().values, average.values);
}

#[test]
fn an_evaluation_has_the_bits_of_the_report() {
    let trained = trained();
    let evaluation = trained.evaluate(&test_set()).unwrap();
    assert_eq!(evaluation.loss.to_bits(), trained.report.test_loss.to_bits());
    assert_eq!(evaluation.metrics[0].value.to_bits(), trained.report.test_metrics["mean"].to_bits());
    assert_eq!(evaluation.variables_crc32c, trained.report.variables_crc32c);
    assert_eq!(evaluation.examples, 300);
}

#[test]
fn a_prediction_has_the_bits_of_the_evaluation() {
    let trained = job().train(Cluster::embedded(1, 1)).unwrap();
    assert!(trained.average("hidden/kernel").is_none());
    let all = trained.predict(&test_set()).unwrap();
    let heights = all.output("height").unwrap();
    assert_eq!((heights.shape, all.iter().count()), (&[300, 1][..], 1));
    let features = features(&test_set());
    for example in [0, 1, 249, 250, 299] {
        // Over a single example, the metric equals the output.
        let row = features[example * 3..(example + 1) * 3].to_vec();
        let one = Examples::f32("features", [3], row).unwrap();
        let alone = trained.predict(&one).unwrap();
        let (alone, among) = (alone.output("height").unwrap().values[0], heights.row(example).unwrap()[0]);
        assert!((alone - among).abs() < 1e-5, "{alone} and {among}");
        assert!(trained.evaluate(&one).is_err(), "an evaluation needs labels");
        let labelled = one.with(&Examples::f32("labels", [], vec![0.0]).unwrap()).unwrap();
        let evaluation = trained.evaluate(&labelled).unwrap();
        assert_eq!(evaluation.metrics[0].value.to_bits(), alone.to_bits(), "{example}");
    }
}

#[test]
fn a_data_set_is_read_batch_by_batch() {
    let (model, all) = (model(), test_set());
    let rows = features(&all);
    let columns = vec![ColumnSpec::new("features", TensorSpec::f32([3]))];
    // The number of examples that have been made.
    let made = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&made);
    let set = from_fn(columns, Some(300), move |index| {
        count.fetch_add(1, Ordering::Relaxed);
        vec![Column::F32(rows[index as usize * 3..][..3].to_vec())]
    });
    let (mut heights, mut told) = (Vec::new(), 0);
    model
        .predict_dataset(set, |batch| {
            let batch = batch.output("height").unwrap();
            told += batch.shape[0] as u64;
            heights.extend_from_slice(batch.values);
            assert_eq!(made.load(Ordering::Relaxed), told, "no later batch is in memory");
            Ok(())
        })
        .unwrap();
    assert_eq!(heights, model.predict(&all).unwrap().output("height").unwrap().values);
    let open = || open(&points(1, 300), &Reading::plain(&Datasets::default())).unwrap();
    assert_eq!(model.evaluate_dataset(open()).unwrap(), model.evaluate(&all).unwrap());
    let bad = open().filter(|_| false);
    assert!(model.evaluate_dataset(bad).unwrap_err().to_string().contains("0 examples"));
}

#[test]
fn batches_of_predictions_join_to_the_whole() {
    let model = model();
    let whole = model.predict(&test_set()).unwrap();
    let (mut sizes, mut joined) = (Vec::new(), Vec::new());
    model
        .predict_each(&test_set(), |batch| {
            let heights = batch.output("height").unwrap();
            sizes.push(heights.shape[0]);
            joined.extend_from_slice(heights.values);
            Ok(())
        })
        .unwrap();
    assert_eq!((sizes, &joined[..]), (vec![20; 15], whole.output("height").unwrap().values));
    let mut batches = 0;
    let stopped = model.predict_each(&test_set(), |_| {
        batches += 1;
        Err(Error::Model("enough".into()))
    });
    assert_eq!((stopped.unwrap_err().to_string().as_str(), batches), ("enough", 1));
}

/// Returns the features of all examples.
fn features(examples: &Examples) -> Vec<f32> {
    match examples.dataset().storage("features") {
        Some(Storage::F32(features)) => features.clone(),
        _ => panic!("points have features"),
    }
}

#[test]
fn a_saved_model_predicts_the_same_bits() {
    let trained = trained();
    let (_dir, path) = saved(trained.model());
    let expected = trained.predict(&test_set()).unwrap();
    for model in [Model::load(&path).unwrap(), Model::load_with(graph(), &path).unwrap()] {
        assert_eq!(model.predict(&test_set()).unwrap(), expected);
        let evaluation = model.evaluate(&test_set()).unwrap();
        assert_eq!(evaluation.variables_crc32c, trained.report.variables_crc32c);
    }
    assert_eq!(Model::load(&path).unwrap().graph(), &graph());
}

/// Saves a model in a temporary directory. Returns the directory, which is deleted when it is dropped, and
/// the path of the file.
fn saved(model: &Model) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    model.save(&path).unwrap();
    (dir, path)
}

/// Returns a model of [`graph`] whose values are 0.5, 1, 1.5 and so on.
fn model() -> Model {
    let graph = graph();
    let mut next = 0.0;
    let values = graph.variables.iter().map(|variable| {
        let numbers: Vec<f32> = (0..variable.shape.elements())
            .map(|_| {
                next += 0.5;
                next
            })
            .collect();
        let buffer = pushpull_transport::buffer::Buffer::from_f32(&numbers);
        pushpull_transport::buffer::Segment::whole(Arc::new(buffer))
    });
    let values = Arc::new(Values::new(values.collect()));
    Model::new(ModelSpec { graph, map: Vec::new(), batch_size: 20 }, values)
}

fn refusal(path: &Path) -> String {
    Model::load(path).unwrap_err().to_string()
}

#[test]
fn a_file_that_does_not_fit_is_named() {
    let (dir, path) = saved(&model());
    assert!(refusal(&dir.path().join("none")).contains("none"));
    assert!(Model::load("/").unwrap_err().to_string().contains("expected the path of a file"));
    let mut g = GraphBuilder::new("other");
    let x = g.input("features", [3]);
    let x = dense("hidden", 5).apply(&mut g, x);
    let loss = g.l2_loss(x);
    let other = Model::load_with(g.finish(loss, &[]).unwrap(), &path).unwrap_err().to_string();
    assert!(other.contains("tensor 'hidden/kernel' is F32 [3, 4], expected F32 [3, 5]"), "{other}");
    let mut g = GraphBuilder::new("more");
    let x = g.input("features", [3]);
    let x = dense("absent", 5).apply(&mut g, x);
    let loss = g.l2_loss(x);
    let absent = Model::load_with(g.finish(loss, &[]).unwrap(), &path).unwrap_err().to_string();
    assert!(absent.contains("has no tensor 'absent/kernel'"), "{absent}");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    assert!(refusal(&path).contains("not a safetensors file"), "{}", refusal(&path));
}

/// Applies `change` to the description of the model that the file `path` contains, and writes the file
/// again.
fn with_card(path: &Path, change: impl FnOnce(&mut serde_json::Value)) {
    let bytes = std::fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let (header, tensors) = bytes[8..].split_at(length);
    let mut header: serde_json::Value = serde_json::from_slice(header).unwrap();
    let mut card = serde_json::from_str(header["__metadata__"]["pushpull"].as_str().unwrap()).unwrap();
    change(&mut card);
    header["__metadata__"]["pushpull"] = card.to_string().into();
    let header = header.to_string();
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(path, [&length[..], header.as_bytes(), tensors].concat()).unwrap();
}

#[test]
fn a_hostile_description_is_refused() {
    use serde_json::json;
    let crop =
        |size: [u32; 2]| json!([{"column": "features", "stage": {"random_crop": {"pad": 0, "size": size}}}]);
    let nan = json!([{"column": "features", "stage": {"standardise": {"mean": [0.0], "stddev": [0.0]}}}]);
    let hostile: [(&str, serde_json::Value); 6] = [
        ("map", crop([1, 0])),
        ("map", nan),
        ("map", json!(vec![json!({"column": "x", "stage": {"one_hot": {"classes": 2}}}); 2000])),
        ("batch_size", json!(0)),
        ("batch_size", json!(1u64 << 40)),
        ("graph", json!({})),
    ];
    for (key, value) in hostile {
        let (_dir, path) = saved(&model());
        with_card(&path, |card| card[key] = value);
        let refused = refusal(&path);
        assert!(refused.contains("description of the model is invalid"), "{key}: {refused}");
    }
    let (_dir, path) = saved(&model());
    with_card(&path, |card| card["graph"]["outputs"][0]["node"] = json!(77));
    assert!(refusal(&path).contains("output 'height'"), "{}", refusal(&path));
    with_card(&path, |_| ());
}

#[test]
fn a_file_name_that_another_program_would_not_find_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["m[1].safetensors", "m%.safetensors", "a b"] {
        let refused = model().save(dir.path().join(name)).unwrap_err().to_string();
        assert!(refused.contains("letters, digits"), "{refused}");
    }
    assert!(model().save("s3://bucket/model").is_err());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn many_threads_predict_at_once() {
    let model = model();
    let counts = [1, 2, 300, 7, 251, 300];
    let predict = |count: &usize| model.predict(&test_set().first(*count).unwrap()).unwrap();
    let expected: Vec<Predictions> = counts.iter().map(predict).collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(counts.iter().map(predict).collect::<Vec<_>>(), expected));
        }
    });
}

#[test]
fn a_program_in_a_runtime_trains_too() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let trained = runtime.block_on(async { job().steps(3).train(Cluster::embedded(1, 1)) });
    assert_eq!(trained.unwrap().report.updates_applied, 3);
}

#[test]
fn what_cannot_be_predicted_is_said() {
    let model = model();
    let narrow = Examples::f32("features", [2], vec![1.0, 2.0]).unwrap();
    assert!(model.predict(&narrow).unwrap_err().to_string().contains("features"));
    let other = Examples::f32("pixels", [3], vec![1.0; 3]).unwrap();
    assert!(model.predict(&other).unwrap_err().to_string().contains("features"));
    assert!(Examples::f32("features", [3], vec![1.0; 4]).is_err(), "not a whole number of examples");
    assert!(Examples::f32("features", [3], Vec::new()).is_err());
    assert!(Examples::f32("features", [usize::MAX, 2], vec![1.0]).is_err());
    assert!(test_set().first(0).is_err());
    assert!(other.with(&other).is_err(), "two columns of one name");
    assert!(other.with(&Examples::i32("labels", [], vec![1, 2]).unwrap()).is_err(), "one example and two");
    let labels = Examples::i32("labels", [], vec![4, 2]).unwrap();
    assert_eq!((labels.integers("labels"), labels.integers("features")), (Some(vec![4, 2]), None));
    let mut graph = graph();
    graph.outputs.clear();
    let spec = ModelSpec { graph, map: Vec::new(), batch_size: 20 };
    let silent = Model::new(spec, Arc::clone(&model.values));
    assert!(silent.predict(&test_set()).unwrap_err().to_string().contains("GraphBuilder::output"));
}

#[test]
fn map_stages_apply_to_predictions_too() {
    let model = model();
    let stages = vec![MapSpec::new("features", StageSpec::Scale { factor: 2.0, offset: 0.0 })];
    let spec = ModelSpec { map: stages, ..model.spec.clone() };
    let scaling = Model::new(spec, Arc::clone(&model.values));
    let features = [0.25, -0.5, 1.0];
    let of = |model: &Model, factor: f32| {
        let scaled = features.iter().map(|value| value * factor).collect();
        model.predict(&Examples::f32("features", [3], scaled).unwrap()).unwrap()
    };
    assert_eq!(of(&scaling, 1.0), of(&model, 2.0));
    let (_dir, path) = saved(&scaling);
    assert_eq!(of(&Model::load(&path).unwrap(), 1.0), of(&model, 2.0));
    assert_eq!(of(&Model::load_with(graph(), &path).unwrap(), 1.0), of(&model, 2.0));
}

#[test]
fn the_first_of_equal_scores_is_the_class() {
    let mut g = GraphBuilder::new("scores");
    let x = g.input("features", [3]);
    g.output("s", x);
    let loss = g.l2_loss(x);
    let graph = g.finish(loss, &[]).unwrap();
    let rows = vec![1.0, 3.0, 3.0, -1.0, -5.0, -1.0];
    let predictions = Predictions::new(&graph, std::iter::once(rows), 2).unwrap();
    assert_eq!(predictions.output("s").unwrap().shape, [2, 3]);
    assert_eq!(predictions.classes("s"), Some(vec![1, 0]));
    assert_eq!(predictions.classes("t"), None);
    let rows = vec![-0.0, 0.0, f32::NAN, f32::NAN, -2.0, -1.0];
    let predictions = Predictions::new(&graph, std::iter::once(rows), 2).unwrap();
    assert_eq!(predictions.classes("s"), Some(vec![0, 2]));
    assert!(Predictions::new(&graph, std::iter::once(vec![1.0; 5]), 2).is_err());
}

#[test]
fn settings_that_are_out_of_range_are_refused() {
    for bad in
        [job().batch_size(0), job().steps(0), job().averages(1.5), job().optimizer(OptimizerSpec::sgd(-1.0))]
    {
        assert!(bad.train(Cluster::embedded(1, 1)).is_err());
    }
    assert!(matches!(job().train(Cluster::embedded(1, 0)), Err(Error::Cluster(_))));
    let missing = DatasetSpec::Cifar10 { files: vec!["/nowhere/data.bin".into()] };
    let nowhere = Job::new(graph(), InputSpec::new(missing.clone(), missing)).train(Cluster::embedded(1, 1));
    assert!(nowhere.unwrap_err().to_string().contains("/nowhere/data.bin"));
}

#[test]
fn a_job_has_the_length_that_it_is_given() {
    let steps = |job: Job, workers: u32| job.spec(workers).unwrap().last_step.0;
    assert_eq!((steps(job(), 1), steps(job(), 2), steps(job(), 3)), (60, 30, 20));
    assert_eq!((steps(job().sync(SyncSpec::ASYNC), 3), steps(job().steps(7), 3)), (60, 7));
    let JobSpec { seed, deterministic, .. } = job().seed(5).deterministic().spec(2).unwrap();
    assert_eq!((seed, deterministic), (5, true));
}

#[test]
fn a_model_replaces_no_device() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink("/dev/null", &link).unwrap();
    let error = super::file::located(&link).unwrap_err().to_string();
    assert!(error.ends_with("is a device or a pipe, expected a file"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Changes one byte of a file. Checks that loading the file fails, or gives a model with which
    /// predicting does not panic.
    #[test]
    fn a_damaged_file_harms_nobody(at: prop::sample::Index, change in 1u8..) {
        let (_dir, path) = saved(&model());
        let mut bytes = std::fs::read(&path).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        std::fs::write(&path, bytes).unwrap();
        if let Ok(model) = Model::load(&path) {
            let _ = model.predict(&test_set().first(3).unwrap());
        }
    }

    /// Checks that a graph is invalid if one of its outputs names a node that does not exist.
    #[test]
    fn an_output_must_be_a_node(node: u32) {
        let mut graph = graph();
        let nodes = graph.nodes.len() as u32;
        graph.outputs[0].node = NodeId(node);
        if node >= nodes {
            prop_assert!(graph.validate(1).is_err());
        }
    }
}
