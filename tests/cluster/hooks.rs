//! Tests of hooks of the chief and of workers, through the library, and of the data that TensorBoard shows
//! for a job.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pushpull::hooks::{
    Better, ChiefHook, FinalOperation, HookContext, HookError, Hooks, ImageOfBatch, Plots, ReduceOnPlateau,
    StepInfo, SummaryEvery, SummarySpec, TRAIN_LOSS, WorkerHook,
};
use pushpull::nn::{Layer, dense};
use pushpull::{
    CheckpointConfig, Cluster, DatasetSpec, Embedded, GraphBuilder, InitializerSpec, InputSpec, Job, JobEnd,
    JobProgress, JobReport, JobSpec, OptimizerSpec, SummaryConfig, SyncSpec, TrainingSnapshot,
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::venv::Venv;

const STEPS: u64 = 200;

fn job() -> JobSpec {
    let mut g = GraphBuilder::new("softmax");
    let images = g.input("features", [28, 28]);
    let labels = g.labels("labels");
    let x = g.reshape(images, [784]);
    let logits = dense("logits", 10).apply(&mut g, x);
    let loss = g.softmax_cross_entropy(logits, labels);
    let accuracy = g.accuracy(logits, labels);
    g.summary_scalar("graph/loss", loss);
    g.summary_histogram("graph/logits", logits);
    let digits = |seed, examples| DatasetSpec::Digits { seed, examples };
    let input = InputSpec::new(digits(1, 1000), digits(2, 200));
    let optimizer = OptimizerSpec::adam(0.002);
    let graph = g.finish(loss, &[("accuracy", accuracy)]).expect("a graph");
    JobSpec { batch_size: 16, optimizer, ..JobSpec::new(graph, input, STEPS) }
}

fn run(embedded: &Embedded) -> anyhow::Result<JobReport> {
    let (tell, _told) = watch::channel(JobProgress::default());
    actix_rt::System::new().block_on(embedded.run(job(), tell, CancellationToken::new()))
}

/// A hook that plots the worker's loss at every tenth step, and fails at the step `fails_at`.
struct OwnLoss {
    fails_at: u64,
}

impl WorkerHook for OwnLoss {
    fn after_step(&mut self, step: &StepInfo<'_>, plots: &Plots) -> Result<(), HookError> {
        if step.local_step.0 == self.fails_at {
            return Err(HookError::new("enough of it"));
        }
        if step.local_step.0.is_multiple_of(10) {
            plots.plot(SummarySpec::scalar("own/loss", step.global_step, step.loss));
        }
        Ok(())
    }
}

const SCRIPT: &str = r#"
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "histograms": 0, "images": 0, "tensors": 0})
events.Reload()
tags = events.Tags()
print(json.dumps({
    "scalars": {tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in tags["scalars"]},
    "histograms": {tag: sum(e.histogram_value.num for e in events.Histograms(tag)) for tag in tags["histograms"]},
    "images": {tag: [events.Images(tag)[0].height, events.Images(tag)[0].width] for tag in tags["images"]},
    "nodes": [n.name for n in events.Graph().node],
}))
"#;

#[test]
fn tensorboard_shows_a_job_from_its_graph_to_its_evaluation() {
    let folder = tempfile::tempdir().unwrap();
    let ended = Arc::new(Mutex::new(None));
    let mut embedded = Embedded::new(2, 2);
    let (dir, told) = (folder.path().to_owned(), Arc::clone(&ended));
    embedded.hooks = vec![
        Arc::new(move || Box::new(SummaryEvery::new(SummaryConfig::new(&dir)))),
        Arc::new(move || {
            let told = Arc::clone(&told);
            Box::new(FinalOperation::new(move |result: Result<&JobEnd, _>| {
                let Ok(JobEnd::Completed(report)) = result else { panic!("{result:?}") };
                *told.lock().unwrap() = Some(report.updates_applied);
            }))
        }),
    ];
    embedded.worker_config.hooks = vec![
        Arc::new(|| Box::new(ImageOfBatch::every(Duration::from_secs(3600)))),
        Arc::new(|| Box::new(OwnLoss { fails_at: u64::MAX })),
    ];
    let report = run(&embedded).unwrap();
    assert_eq!(*ended.lock().unwrap(), Some(STEPS));
    let Some(venv) = Venv::find("what TensorBoard shows of a job") else { return };
    let shown: Value = serde_json::from_str(&venv.run(SCRIPT, &[folder.path().as_os_str()])).unwrap();
    let last = |tag: &str| shown["scalars"][tag].as_array().and_then(|points| points.last()).cloned();
    let evaluation = &report.evaluation;
    for (tag, value) in [
        ("train/loss", report.train_loss),
        ("train/learning_rate", 0.002),
        ("shards/version_spread", 0.0),
        ("eval/loss", evaluation.loss),
        ("eval/accuracy", evaluation.metrics[0].value),
    ] {
        let point = last(tag).unwrap_or_else(|| panic!("no {tag} in {shown}"));
        assert_eq!(point[0], json!(STEPS), "{tag}");
        assert!(
            (point[1].as_f64().unwrap() - f64::from(value)).abs() < 1e-5,
            "{tag} is {point}, not {value}"
        );
    }
    // Each of the two shards applies one push at every step.
    let points = shown["scalars"]["pushes/applied"].as_array().unwrap();
    let pushes: f64 = points.iter().map(|point| point[1].as_f64().unwrap()).sum();
    assert_eq!(pushes, 2.0 * STEPS as f64, "{shown}");
    assert_eq!(shown["histograms"]["staleness"].as_f64(), Some(pushes));
    for worker in 0..2 {
        assert_eq!(shown["images"][format!("input/features/worker_{worker}")], json!([28, 28]), "{shown}");
        assert!(last(&format!("own/loss/worker_{worker}")).is_some(), "{shown}");
        assert!(last(&format!("graph/loss/worker_{worker}")).is_some(), "{shown}");
        // The logits of one batch are 16 · 10 numbers.
        let logits = shown["histograms"][format!("graph/logits/worker_{worker}")].as_f64();
        assert!(logits.is_some_and(|count| count >= 160.0 && count % 160.0 == 0.0), "{shown}");
    }
    let accuracy = last("train/accuracy").unwrap_or_else(|| panic!("no accuracy in {shown}"));
    assert!((0.0..=1.0).contains(&accuracy[1].as_f64().unwrap()), "{accuracy}");
    assert!(last("train/gradient_norm").is_none_or(|point| point[1].as_f64().unwrap() > 0.0));
    let nodes = shown["nodes"].as_array().unwrap();
    assert!(nodes.contains(&json!("logits/kernel")), "{shown}");
}

#[test]
fn an_error_of_a_workers_hook_ends_the_job_with_its_words() {
    let mut embedded = Embedded::new(1, 1);
    embedded.worker_config.hooks = vec![Arc::new(|| Box::new(OwnLoss { fails_at: 5 }))];
    let error = run(&embedded).unwrap_err().to_string();
    assert_eq!(error, "worker/0 failed: a hook ended the training: enough of it");
}

/// Ends the training when all shards have a factor of the learning rate. Records the first factor that it
/// sees.
struct StopAtFactor {
    factor: f32,
    first: Arc<Mutex<Option<Option<f32>>>>,
}

impl ChiefHook for StopAtFactor {
    fn progress(&mut self, snapshot: &TrainingSnapshot, context: &mut HookContext) {
        if snapshot.shards.is_empty() {
            return;
        }
        self.first.lock().unwrap().get_or_insert(snapshot.learning_rate_factor());
        if snapshot.shards.iter().all(|(_, shard)| shard.learning_rate_factor == Some(self.factor)) {
            context.stop("the learning rate is reduced");
        }
    }
}

/// Trains two variables that always have the same gradient, each on a ps task of its own, until the learning
/// rate has been reduced. Returns the bits of both, and the factor that the chief saw first.
fn reduced(dir: &tempfile::TempDir) -> ([u32; 2], Option<f32>) {
    let mut g = GraphBuilder::new("twins");
    let (x, labels) = (g.input("features", [1]), g.input("labels", []));
    let [one, other] = ["one", "other"].map(|name| g.variable(name, [1, 1], InitializerSpec::Zeros));
    let (one, other) = (g.matmul(x, one), g.matmul(x, other));
    let sum = g.add(one, other);
    let sum = g.reshape(sum, []);
    let loss = g.mean_squared_error(sum, labels);
    let points = || DatasetSpec::Linear { seed: 1, examples: 400, weights: vec![3.0], bias: 9.0, noise: 0.0 };
    let first = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&first);
    // Nothing counts as an improvement, so the learning rate is halved at the second value.
    let plateau =
        || ReduceOnPlateau::new(TRAIN_LOSS, Better::Lower, 1).factor(0.5).minimum(0.5).min_delta(1e9);
    let stop = move || StopAtFactor { factor: 0.5, first: Arc::clone(&seen) };
    // The values still move at every step, so a shard that was a step ahead would have other bits.
    let trained = Job::new(g.finish(loss, &[]).expect("a graph"), InputSpec::new(points(), points()))
        .optimizer(OptimizerSpec::sgd(1e-7))
        .sync(SyncSpec::SYNC)
        .steps(1_000_000_000)
        .hooks(Hooks::new().chief(plateau).chief(stop))
        .checkpoints(CheckpointConfig::new(dir.path().display().to_string()))
        .train(Cluster::embedded(2, 2))
        .unwrap();
    assert_eq!(trained.report.stopped.as_deref(), Some("the learning rate is reduced"));
    let bits = ["one", "other"].map(|name| trained.value(name).expect("a variable").values[0].to_bits());
    let first = first.lock().unwrap().take();
    (bits, first.expect("it was called"))
}

#[test]
fn a_reduced_learning_rate_is_the_same_on_all_shards_and_saved() {
    let dir = tempfile::tempdir().unwrap();
    let ([one, other], first) = reduced(&dir);
    assert_eq!((one, first), (other, None));
    let ([later, twin], first) = reduced(&dir);
    assert_eq!((later, first), (twin, Some(0.5)), "the job resumes with the factor");
    assert_ne!(one, later);
}
