//! Tests the evaluator with a checkpoint store that the tests fill. The model is a plane. Its loss is known,
//! because its data have no noise.

use std::path::Path;
use std::time::Duration;

use pushpull_messages::checkpoint::{FileSpec, Part, SavedTensorSpec};
use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::{GlobalStep, Incarnation, PlacementEpoch, ShardId, VariableId, Version};
use pushpull_messages::input::{DatasetSpec, InputSpec};
use pushpull_messages::message::Evaluation;
use pushpull_messages::observe::{EvaluatorSnapshot, Observed, RoleSnapshot, TaskState};
use pushpull_messages::optimizer::RateSpec;
use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
use pushpull_messages::variable::InitializerSpec;
use pushpull_storage::{Catalog, FORMAT, NewTensor, write_file};
use pushpull_transport::buffer::{Buffer, Segment};
use tokio::sync::mpsc;

use super::*;
use crate::config::WorkerConfig;
use crate::devices::DeviceList;

const WEIGHTS: [f32; 2] = [1.5, -0.5];
const LAST_STEP: u64 = 4;

fn job(average: Option<f32>) -> JobSpec {
    let mut g = GraphBuilder::new("plane");
    let (features, labels) = (g.input("features", [2]), g.input("labels", []));
    let kernel = g.variable("kernel", [2, 1], InitializerSpec::Zeros);
    let bias = g.variable("bias", [1], InitializerSpec::Zeros);
    let x = g.matmul(features, kernel);
    let x = g.bias_add(x, bias);
    let shift = g.untrained("shift", [1], InitializerSpec::Zeros);
    let x = g.add(x, shift);
    let x = g.reshape(x, []);
    let loss = g.mean_squared_error(x, labels);
    let closeness = g.scale(loss, -1.0);
    let points = |examples| DatasetSpec::Linear {
        seed: examples,
        examples,
        weights: WEIGHTS.to_vec(),
        bias: 1.0,
        noise: 0.0,
    };
    let graph = g.finish(loss, &[("closeness", closeness)]).unwrap();
    JobSpec {
        batch_size: 16,
        average,
        ..JobSpec::new(graph, InputSpec::new(points(50), points(37)), LAST_STEP)
    }
}

/// Returns the kernel, the bias and the shift of a plane whose mean squared error is the square of `off`.
fn plane(off: f32) -> [Vec<f32>; 3] {
    [WEIGHTS.to_vec(), vec![0.75 + off], vec![0.25]]
}

fn name(step: u64) -> CheckpointName {
    CheckpointName { step: GlobalStep(step), life: Incarnation(7) }
}

/// Saves a checkpoint whose kernel is split over two shards. If `averages` is given, the checkpoint also
/// contains these averages, but only for variables of which the job keeps averages.
async fn save(
    store: &Store,
    step: u64,
    job: &JobSpec,
    values: &[Vec<f32>; 3],
    averages: Option<&[Vec<f32>; 3]>,
) {
    let shards = [ShardId::new(0, 0), ShardId::new(1, 0)];
    let placed = |variable, row, rows, shard: usize| PlacedSlice {
        slice: SliceSpec { variable: VariableId(variable), row, rows },
        shard: shards[shard],
    };
    let slices = vec![placed(0, 0, 1, 1), placed(0, 1, 1, 0), placed(1, 0, 1, 1), placed(2, 0, 1, 0)];
    let placement = Placement { epoch: PlacementEpoch(1), shards: shards.to_vec(), slices };
    let mut files = Vec::new();
    for shard in shards {
        let (mut tensors, mut specs) = (Vec::new(), Vec::new());
        for (id, slice) in placement.on_shard(shard) {
            let variable = &job.graph.variables[slice.variable.index()];
            let averages = averages.filter(|_| job.update().averages(variable));
            let parts = [(Part::Value, Some(values)), (Part::Average, averages)];
            for (part, numbers) in parts {
                let Some(numbers) = numbers else { continue };
                let first = slice.first_element(variable);
                let own = &numbers[slice.variable.index()][first..first + slice.elements(variable)];
                let mut shape = variable.shape.clone();
                shape.0[0] = slice.rows as usize;
                let bytes = vec![bytemuck::cast_slice::<f32, u8>(own).to_vec().into()];
                tensors.push(NewTensor { name: format!("{id}:{part:?}"), shape, bytes });
                specs.push((id, part));
            }
        }
        let file = CheckpointName::shard_file(shard);
        let (written, bytes) =
            write_file(store, &name(step).file(&file), tensors.clone(), Default::default()).await.unwrap();
        let tensors = tensors.into_iter().zip(specs).zip(written);
        let tensors = tensors.map(|((tensor, (slice, part)), written)| SavedTensorSpec {
            name: tensor.name,
            slice,
            part,
            offset: written.offset,
            bytes: written.bytes,
            crc32c: written.crc32c,
        });
        let tensors: Vec<SavedTensorSpec> = tensors.collect();
        files.push(FileSpec { name: file, shard, version: Version(step), bytes, tensors });
    }
    let step = GlobalStep(step);
    let (job, workers) = (job.clone(), Vec::new());
    let learning_rate = RateSpec::default();
    let manifest = ManifestSpec {
        format: FORMAT,
        step,
        saved_ms: 1,
        job,
        placement,
        files,
        workers,
        learning_rate,
        inputs: Default::default(),
    };
    manifest.validate().unwrap();
    store.put(&name(step.0).manifest(), manifest.encode().unwrap()).await.unwrap();
}

async fn save_plane(store: &Store, step: u64, off: f32) {
    save(store, step, &job(None), &plane(off), None).await;
}

struct Running {
    told: mpsc::UnboundedReceiver<EvaluationRecord>,
    ended: tokio::task::JoinHandle<Result<(), EvaluatorError>>,
    interrupt: CancellationToken,
    view: EvaluatorView,
}

fn config() -> EvaluatorConfig {
    EvaluatorConfig { poll_every: Duration::from_millis(5), ..Default::default() }
}

fn start(store: &Store, config: EvaluatorConfig) -> Running {
    let interrupt = CancellationToken::new();
    let evaluator = Evaluator::new(config, store.clone(), BufferPool::default(), interrupt.clone()).unwrap();
    let (tell, told) = mpsc::unbounded_channel();
    let view = evaluator.view();
    let ended = actix_rt::spawn(evaluator.run(move |record| tell.send(record.clone()).unwrap()));
    Running { told, ended, interrupt, view }
}

impl Running {
    async fn next(&mut self) -> EvaluationRecord {
        let next = tokio::time::timeout(Duration::from_secs(60), self.told.recv());
        next.await.expect("an evaluation within a minute").expect("the evaluator is running")
    }

    async fn end(self) -> Result<(), EvaluatorError> {
        let ended = tokio::time::timeout(Duration::from_secs(60), self.ended);
        ended.await.expect("an end within a minute").unwrap()
    }
}

async fn seen(view: &EvaluatorView) -> (TaskState, EvaluatorSnapshot) {
    let seen = view.observe().await;
    let RoleSnapshot::Evaluator(evaluator) = seen.role else { panic!("an evaluator's") };
    (seen.state, *evaluator)
}

fn with_store<F: Future<Output = ()>>(test: impl FnOnce(Store, std::path::PathBuf) -> F) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    let store = Store::open(path.to_str().unwrap()).unwrap();
    actix_rt::System::new().block_on(test(store, path));
}

fn folders(path: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(path)
        .map(|entries| entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect())
        .unwrap_or_default();
    names.sort();
    names
}

fn close(evaluation: &Evaluation, off: f32) -> bool {
    (evaluation.loss - off * off).abs() < 1e-5 && evaluation.examples == 37
}

#[test]
fn every_new_checkpoint_is_evaluated_until_the_last() {
    with_store(|store, path| async move {
        let mut running = start(&store, config());
        let view = running.view.clone();
        assert_eq!(seen(&view).await, (TaskState::Starting, EvaluatorSnapshot::default()));
        for (step, off) in [(1, 0.5), (2, 0.1), (3, 0.3), (LAST_STEP, 0.2)] {
            save_plane(&store, step, off).await;
            let record = running.next().await;
            let (_, evaluator) = seen(&view).await;
            let metrics = record.evaluation.metrics.clone();
            assert_eq!((evaluator.evaluated, evaluator.took.count(), evaluator.failed), (step, step, 0));
            assert_eq!((evaluator.step, evaluator.metrics), (Some(record.step), metrics));
            assert_eq!(evaluator.loss, Some(record.evaluation.loss));
            assert!(record.step.0 == step && close(&record.evaluation, off), "{record:?}");
            let bytes = store.get(&EvaluationRecord::file(name(step)), RECORD_BYTES_MAX).await.unwrap();
            assert_eq!(EvaluationRecord::decode(&bytes).unwrap(), record);
        }
        running.end().await.unwrap();
        assert_eq!((seen(&view).await.0, seen(&view).await.1.evaluated), (TaskState::Ended, LAST_STEP));
        let actors = view.observe().await.actors;
        let brief = actors.iter().map(|actor| (actor.name.as_str(), actor.state.as_str()));
        let brief: Vec<_> = brief.collect();
        assert_eq!(brief, [("evaluator/0/watcher", "ended"), ("evaluator/0/device/0", "ended")]);
        // Each evaluation has three batches: 37 examples, at most 16 in a batch.
        assert_eq!(actors[1].handling.count(), 3 * LAST_STEP);
        assert_eq!(folders(&path.join(BEST)), [name(2).to_string()]);
        // The best checkpoint is stored separately, so it remains when the original is deleted.
        store.delete_folder(&name(2).to_string()).await.unwrap();
        let best = store.folder(BEST);
        let manifest = Catalog::new(best.clone()).manifest(name(2)).await.unwrap();
        let values = read_values(&best, name(2), &manifest, &BufferPool::default()).await.unwrap();
        for (id, numbers) in plane(0.1).iter().enumerate() {
            assert_eq!(values.variable(VariableId(id as u32)), &numbers[..]);
        }
    });
}

#[test]
fn the_best_by_a_given_metric_outlives_the_evaluator() {
    with_store(|store, path| async move {
        let worst = EvaluatorConfig { best: Some("closeness:min".parse().unwrap()), ..config() };
        let mut running = start(&store, worst.clone());
        for (step, off) in [(1, 0.5), (2, 0.1)] {
            save_plane(&store, step, off).await;
            running.next().await;
        }
        running.interrupt.cancel();
        running.end().await.unwrap();
        assert_eq!(folders(&path.join(BEST)), [name(1).to_string()]);
        // A second evaluator finds the record of the best checkpoint.
        let mut running = start(&store, worst.clone());
        save_plane(&store, 3, 0.2).await;
        assert_eq!(running.next().await.step, GlobalStep(3));
        save_plane(&store, LAST_STEP, 0.3).await;
        assert_eq!(running.next().await.step, GlobalStep(LAST_STEP));
        running.end().await.unwrap();
        assert_eq!(folders(&path.join(BEST)), [name(1).to_string()]);
        // A third evaluator has nothing to do.
        let mut running = start(&store, worst);
        assert!(running.told.recv().await.is_none());
        running.end().await.unwrap();
    });
}

#[test]
fn an_evaluator_behind_takes_the_newest() {
    with_store(|store, path| async move {
        for (step, off) in [(1, 0.5), (2, 0.1), (3, 0.3), (LAST_STEP, 0.2)] {
            save_plane(&store, step, off).await;
        }
        // A checkpoint without a manifest is ignored.
        store.put(&name(LAST_STEP + 1).file("ps-0-shard-0.safetensors"), "half").await.unwrap();
        let mut running = start(&store, config());
        assert_eq!(running.next().await.step, GlobalStep(LAST_STEP));
        running.end().await.unwrap();
        assert_eq!(folders(&path.join(EVALUATIONS)), [format!("{}.json", name(LAST_STEP))]);
    });
}

#[test]
fn broken_and_deleted_checkpoints_are_passed_over() {
    with_store(|store, path| async move {
        for step in 1..=3 {
            save_plane(&store, step, 0.5).await;
        }
        let file = |step, end: &str| path.join(name(step).file(end));
        let broken = file(3, "ps-1-shard-0.safetensors");
        let mut bytes = std::fs::read(&broken).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&broken, bytes).unwrap();
        std::fs::remove_file(file(2, "ps-0-shard-0.safetensors")).unwrap();
        let mut running = start(&store, config());
        assert_eq!(running.next().await.step, GlobalStep(1));
        // No checkpoint follows the last one, so the evaluator ends even if the last one is broken.
        store.put(&name(LAST_STEP).manifest(), "{}").await.unwrap();
        let view = running.view.clone();
        let error = running.end().await.unwrap_err().to_string();
        let (_, evaluator) = seen(&view).await;
        assert_eq!((evaluator.evaluated, evaluator.failed), (1, 3));
        assert!(error.contains(", the checkpoint of the job's last step, cannot be evaluated: "), "{error}");
    });
}

#[test]
fn values_or_their_averages_are_evaluated() {
    with_store(|store, _| async move {
        let (values, averages) = (plane(0.5), plane(-0.25));
        for (step, average, chosen) in [(1, None, ""), (2, Some(0.9), "*"), (3, Some(0.9), "kernel")] {
            let average_variables = average.iter().map(|_| chosen.to_owned()).collect();
            let job = JobSpec { average_variables, ..job(average) };
            save(&store, step, &job, &values, average.map(|_| &averages)).await;
            let mut running = start(&store, config());
            let record = running.next().await;
            running.interrupt.cancel();
            running.end().await.unwrap();
            // Untrained variables have no average, and the average of the kernel equals its value.
            let averaged = chosen == "*";
            let numbers = if averaged { &averages } else { &values };
            let segments = numbers.iter().map(|numbers| Segment::whole(Arc::new(Buffer::from_f32(numbers))));
            let direct = Arc::new(Values::new(segments.collect()));
            let (task, config) =
                (TaskId::worker(0), WorkerConfig { devices: DeviceList::cpus(2), ..Default::default() });
            let (resume, fetches) = (Resume::default(), FetchPlan::default());
            let group = None;
            let preparation = Preparation {
                config,
                job: job.clone(),
                task,
                part: PipelineWorker::ALL,
                resume,
                fetches,
                group,
            };
            let PreparedEvaluation { test, replicas, .. } = preparation.evaluation().unwrap();
            let devices = Devices::start(replicas, true, vec![0..1; 2], &job.graph);
            let expected =
                evaluate_values(&direct, &devices, &Arc::new(test), &job, Duration::ZERO).await.unwrap();
            assert_eq!(record.evaluation, expected);
            assert!(close(&expected, if averaged { -0.25 } else { 0.5 }), "{expected:?}");
        }
    });
}

#[test]
fn a_store_that_fails_for_a_moment_does_not_end_it() {
    with_store(|store, path| async move {
        let mut running = start(&store, config());
        while seen(&running.view).await.0 != TaskState::Ready {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // A file is in the place of the folder, so the copy of the best checkpoint fails.
        std::fs::write(path.join(BEST), "").unwrap();
        save_plane(&store, LAST_STEP, 0.5).await;
        while seen(&running.view).await.1.evaluated < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        std::fs::remove_file(path.join(BEST)).unwrap();
        assert_eq!(running.next().await.step, GlobalStep(LAST_STEP));
        running.end().await.unwrap();
        assert_eq!(folders(&path.join(BEST)), [name(LAST_STEP).to_string()]);
    });
}

#[test]
fn errors_that_end_the_evaluator_are_returned() {
    with_store(|store, _| async move {
        let impatient = EvaluatorConfig { idle_timeout: Some(Duration::ZERO), ..config() };
        let error = start(&store, impatient.clone()).end().await.unwrap_err().to_string();
        assert!(error.starts_with("no checkpoint appeared in "), "{error}");
        save_plane(&store, 1, 0.5).await;
        start(&store, impatient).end().await.unwrap();
        save_plane(&store, 2, 0.5).await;
        let config = EvaluatorConfig { best: Some("accuracy".parse().unwrap()), ..config() };
        let error = start(&store, config).end().await.unwrap_err().to_string();
        let expected = "cannot choose the best checkpoint by 'accuracy': the model has no such metric, only loss, closeness";
        assert_eq!(error, expected);
    });
}

#[test]
fn a_manifest_without_its_averages_is_refused() {
    with_store(|store, _| async move {
        save(&store, 1, &job(Some(0.5)), &plane(0.5), None).await;
        let manifest = Catalog::new(store.clone()).manifest(name(1)).await.unwrap();
        let read = read_values(&store, name(1), &manifest, &BufferPool::default()).await;
        let refused = read.unwrap_err().to_string();
        assert!(refused.contains("lacks the average of 'kernel'"), "{refused}");
        store.copy(&name(1).manifest(), &name(2).manifest()).await.unwrap();
        let other = Catalog::new(store.clone()).manifest(name(2)).await.unwrap_err().to_string();
        assert!(other.contains("lies in the folder of another step"), "{other}");
    });
}
