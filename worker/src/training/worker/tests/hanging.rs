//! Tests of workers whose input or device hangs while their heartbeats go on.

use std::sync::{Mutex, mpsc};

use pushpull_engine::{Feed, OpTime};
use pushpull_input::{Batch, Datasets, from_fn};
use pushpull_messages::cadence::EvalEverySpec;
use pushpull_messages::input::{Column, ColumnSpec, DatasetSpec, ShuffleSpec, StreamSpec};
use pushpull_messages::tensor::TensorSpec;

use super::fake_cluster::job;
use super::*;
use crate::client::{Gradients, Values};
use crate::devices::{Complete, DeviceList, GraphReplica, Replica, ReplicaConfig, ReplicaError};

/// The receiver at which a hanging replica or data set waits until the test drops the sender.
pub(super) type Gate = Mutex<mpsc::Receiver<()>>;

/// A replica that hangs in its third step.
pub(super) struct Hanging {
    inner: GraphReplica,
    steps: u32,
    gate: Arc<Gate>,
}

impl Hanging {
    pub(super) fn new(inner: GraphReplica, gate: &Arc<Gate>) -> Self {
        Self { inner, steps: 0, gate: Arc::clone(gate) }
    }
}

impl Replica for Hanging {
    fn step(
        &mut self,
        feed: Feed<'_>,
        values: &Values,
        gradients: &mut Gradients,
        complete: &mut Complete<'_>,
    ) -> Result<f32, ReplicaError> {
        self.steps += 1;
        if self.steps == 3 {
            let _ = self.gate.lock().unwrap().recv();
        }
        self.inner.step(feed, values, gradients, complete)
    }

    fn fetched(&self) -> &[f32] {
        self.inner.fetched()
    }

    fn op_times(&self) -> Vec<OpTime> {
        self.inner.op_times()
    }

    fn prepare(&mut self, examples: usize) -> Result<(), ReplicaError> {
        self.inner.prepare(examples)
    }

    fn evaluate(&mut self, batch: &Batch, values: &Values) -> Result<Vec<f32>, ReplicaError> {
        self.inner.evaluate(batch, values)
    }
}

/// Runs a worker that is told to evaluate after its last step. Checks that the worker ends with the error
/// that `what` hangs, that it reports this error to the chief, and that it has taken at most `steps` steps.
fn gives_up(job: JobSpec, config: WorkerConfig, what: &'static str, steps: u64) {
    let config = WorkerConfig { hung_after: Duration::from_millis(50), ..config };
    play(Script { job, config, ..Default::default() }, |mut play| async move {
        play.chief.words().evaluate = true;
        let error = play.end().await.unwrap_err();
        let WorkerError::Hung { what: found, .. } = &error else { panic!("{error}") };
        assert_eq!(*found, what);
        let finish = play.chief.words().finish.take().expect("the chief is told");
        assert_eq!(finish.result, TrainingResult::GaveUp(error.to_string()));
        assert!(finish.local_step <= LocalStep(steps), "{}", finish.local_step);
    });
}

#[test]
fn a_worker_whose_device_hangs_gives_up() {
    // With two devices, gradients are added up before they are pushed; with one, the push begins early.
    for (devices, accumulate) in [(1, 1), (2, 1), (1, 3)] {
        let (open, gate) = mpsc::channel();
        let gate = Arc::new(Mutex::new(gate));
        let own = Arc::clone(&gate);
        let replica = move |config: ReplicaConfig<'_>| {
            Ok(Box::new(Hanging::new(GraphReplica::new(config)?, &own)) as Box<dyn Replica>)
        };
        let config = WorkerConfig {
            devices: DeviceList::cpus(devices),
            replica: Arc::new(replica),
            ..Default::default()
        };
        gives_up(JobSpec { accumulate, ..job(7) }, config, "the computation of a batch", 2);
        drop(open);
    }
}

#[test]
fn a_worker_whose_input_hangs_gives_up() {
    let (open, datasets) = gated(None);
    let mut job = job(7);
    job.input.train = DatasetSpec::Custom("gated".into());
    job.input.shuffle = ShuffleSpec::None;
    gives_up(job, WorkerConfig { datasets, ..Default::default() }, "the input", 3);
    drop(open);
}

#[test]
fn a_worker_whose_test_set_hangs_gives_up() {
    // While the job trains, and after its last step.
    for (eval_every, steps) in [(Some(EvalEverySpec::Steps(2)), 7), (None, 0)] {
        let (open, datasets) = gated(Some(4 * u64::from(BATCH)));
        let mut job = JobSpec { eval_every, ..job(7) };
        job.input.test = DatasetSpec::Custom("gated".into());
        job.input.stream = StreamSpec::Always;
        gives_up(job, WorkerConfig { datasets, ..Default::default() }, "the test set", steps);
        drop(open);
    }
}

/// Returns a sender, and a collection that contains the data set `gated`. This data set has `length`
/// examples, or is endless if `length` is `None`. A reader that reaches the fourth batch of the data set
/// hangs until the sender is dropped.
fn gated(length: Option<u64>) -> (mpsc::Sender<()>, Datasets) {
    let (open, gate) = mpsc::channel::<()>();
    let gate: Arc<Gate> = Arc::new(Mutex::new(gate));
    let columns = vec![
        ColumnSpec { name: "features".into(), example: TensorSpec::f32([2]) },
        ColumnSpec { name: "labels".into(), example: TensorSpec::f32([]) },
    ];
    let examples = from_fn(columns, length, move |index| {
        if index >= 3 * u64::from(BATCH) {
            let _ = gate.lock().unwrap().recv();
        }
        vec![Column::F32(vec![1.0, 2.0]), Column::F32(vec![0.5])]
    });
    let mut datasets = Datasets::default();
    datasets.insert("gated", Arc::new(examples));
    (open, datasets)
}
