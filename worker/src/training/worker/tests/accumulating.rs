//! Tests of steps that accumulate the gradients of several batches. The expected losses and values are from
//! PyTorch: `testdata/generate.py` wrote them to `testdata/accumulation.json`.

use std::sync::Mutex;

use pushpull_input::{Datasets, InMemory, Storage};
use pushpull_messages::graph::{GraphBuilder, UnaryOp};
use pushpull_messages::id::VariableId;
use pushpull_messages::input::{ColumnSpec, DatasetSpec, InputSpec, RepeatSpec, ShuffleSpec};
use pushpull_messages::tensor::TensorSpec;
use pushpull_messages::variable::InitializerSpec;
use serde_json::Value;

use super::fake_cluster::job;
use super::*;

/// A job with its data and its initial values, and the results of the steps that PyTorch computed from them.
struct Case {
    job: JobSpec,
    datasets: Datasets,
    start: [Vec<f32>; 2],
    learning_rate: f32,
    steps: Vec<Step>,
}

/// The loss of a step, and the values of both variables after it.
type Step = (f32, [Vec<f32>; 2]);

fn floats(value: &Value) -> Vec<f32> {
    serde_json::from_value(value.clone()).expect("numbers")
}

fn both(value: &Value) -> [Vec<f32>; 2] {
    [floats(&value[0]), floats(&value[1])]
}

fn case() -> Case {
    let case: Value = serde_json::from_str(include_str!("testdata/accumulation.json")).expect("JSON");
    let whole = |key: &str| case[key].as_u64().expect("a whole number");
    let float = |value: &Value| value.as_f64().expect("a number") as f32;
    let [inputs, width] = ["inputs", "width"].map(|key| whole(key) as usize);
    let mut g = GraphBuilder::new("network");
    let (features, labels) = (g.input("features", [inputs]), g.input("labels", []));
    let hidden = g.variable("hidden", [inputs, width], InitializerSpec::Zeros);
    let output = g.variable("output", [width, 1], InitializerSpec::Zeros);
    let x = g.matmul(features, hidden);
    let x = g.unary(UnaryOp::Tanh, x);
    let x = g.matmul(x, output);
    let x = g.reshape(x, []);
    let loss = g.mean_squared_error(x, labels);
    let set = DatasetSpec::Custom("points".into());
    let input = InputSpec { shuffle: ShuffleSpec::None, ..InputSpec::new(set.clone(), set) };
    let labels = floats(&case["labels"]);
    let column = |name: &str, example| ColumnSpec { name: name.into(), example };
    let columns = vec![
        (column("features", TensorSpec::f32([inputs])), Storage::F32(floats(&case["features"]))),
        (column("labels", TensorSpec::f32([])), Storage::F32(labels.clone())),
    ];
    let mut datasets = Datasets::default();
    datasets.insert("points", Arc::new(InMemory::new(labels.len(), columns).unwrap()));
    let steps = case["steps"].as_array().expect("steps");
    let job = JobSpec {
        batch_size: whole("batch") as u32,
        accumulate: whole("batches") as u32,
        ..JobSpec::new(g.finish(loss, &[]).unwrap(), input, steps.len() as u64)
    };
    let steps = steps.iter().map(|step| (float(&step["loss"]), both(&step["values"]))).collect();
    let (start, learning_rate) = (both(&case["start"]), float(&case["learning_rate"]));
    Case { job, datasets, start, learning_rate, steps }
}

/// A hook that records the loss and the variables' values after every step.
struct Recorder(Arc<Mutex<Vec<Step>>>);

impl Hook for Recorder {
    fn after_step(&mut self, info: &StepInfo<'_>, _: &Plots) -> Result<(), HookError> {
        let values = [0, 1].map(|variable| info.values.variable(VariableId(variable)).to_vec());
        self.0.lock().unwrap().push((info.loss, values));
        Ok(())
    }
}

#[test]
fn accumulated_steps_agree_with_those_of_pytorch() {
    for (devices, tcp) in [(1, false), (1, true), (2, false), (3, true)] {
        let Case { job, datasets, start, learning_rate, steps } = case();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let recorder = Arc::clone(&seen);
        let hooks: Vec<MakeHook> = vec![Arc::new(move || Box::new(Recorder(Arc::clone(&recorder))))];
        let script = Script { job, start, learning_rate, tcp, ..Default::default() };
        let config = WorkerConfig { devices: DeviceList::cpus(devices), hooks, datasets, ..script.config };
        play(Script { config, ..script }, |mut play| async move { play.end().await.unwrap() });
        let seen = seen.lock().unwrap();
        assert!(seen.len() == steps.len() && steps.len() >= 10);
        for (step, ((loss, values), (expected_loss, expected))) in seen.iter().zip(&steps).enumerate() {
            assert!((loss - expected_loss).abs() < 1e-5, "step {step}: {loss}, not {expected_loss}");
            for (got, want) in values.iter().flatten().zip(expected.iter().flatten()) {
                assert!((got - want).abs() < 1e-5, "step {step}, {devices} devices: {got}, not {want}");
            }
        }
    }
}

#[test]
fn every_batch_of_a_step_is_counted() {
    let (batches, steps) = (3, 7);
    let hooks: Vec<MakeHook> = vec![Arc::new(|| Box::new(Quiet) as Box<dyn Hook>)];
    let script = Script { job: JobSpec { accumulate: batches, ..job(steps) }, ..Default::default() };
    let config = WorkerConfig { hooks, ..script.config };
    play(Script { config, ..script }, |mut play| async move {
        play.end().await.unwrap();
        let last = play.view.observe().await;
        let (worker, batches) = (worker_of(&last), u64::from(batches));
        assert_eq!((worker.local_step.0, worker.global_step.0), (steps, steps));
        // The worker continued after four batches of an earlier run.
        assert_eq!(
            (worker.drawn, worker.examples),
            (4 + batches * steps, batches * steps * u64::from(BATCH))
        );
        assert!(play.drawn().into_iter().eq((1..=steps).map(|step| 4 + batches * step)));
        assert_eq!(last.actors[2].handling.count(), batches * steps);
        let counts = worker.phases.iter().map(|(_, times)| times.count());
        assert_eq!(counts, [steps; 5]);
        // The durations of the phases add up to those of the steps, except for fractions of a microsecond.
        let sum: u64 = worker.phases.iter().iter().map(|(_, times)| times.sum_us).sum();
        assert!(sum.abs_diff(last.actors[0].handling.sum_us) <= 6 * steps);
    });
}

#[test]
fn batches_that_fill_no_step_are_not_pushed() {
    // The 50 examples fill three batches, and these fill one step of two batches.
    let mut job = JobSpec { accumulate: 2, ..job(7) };
    job.input.repeat = RepeatSpec::Epochs(1);
    play(Script { job, ..Default::default() }, |mut play| async move {
        play.end().await.unwrap();
        assert_eq!(play.drawn(), [4 + 2]);
        let words = play.chief.words();
        let finish = words.finish.as_ref().expect("it has told the chief");
        assert_eq!(finish.local_step, LocalStep(1));
        assert!(matches!(finish.result, TrainingResult::InputEnded(_)), "{finish:?}");
        let told = words.reports.last().and_then(|report| report.snapshot.as_ref());
        assert_eq!(told.map(|told| told.drawn), Some(6));
    });
}
