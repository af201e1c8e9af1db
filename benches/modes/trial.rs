//! Runs one trial of a job. Every replica counts its steps and may sleep at the end of each; the slow
//! replica sleeps longest. Worker 0 keeps snapshots of the variables' values that it receives; they are
//! evaluated after the job has ended. This module must not depend on other jobs or on how results are shown.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Context;
use pushpull::nn::{Layer, dense, flatten};
use pushpull::{
    DatasetSpec, Embedded, GraphBuilder, GraphError, GraphSpec, InputSpec, JobProgress, JobSpec,
    OptimizerSpec, ScheduleSpec, SyncSpec,
};
use pushpull_engine::Feed;
use pushpull_input::{Batch, Mapped, in_order, input_in_directory, load};
use pushpull_messages::device::{Device, DeviceKind};
use pushpull_messages::id::TaskId;
use pushpull_worker::{
    Complete, Compute, Gradients, GraphReplica, Replica, ReplicaConfig, ReplicaError, Values,
};
use serde::{Deserialize, Serialize};

/// The number of examples in one worker's batch.
const BATCH: u32 = 64;
/// The approximate number of snapshots that are evaluated for each job.
const POINTS: u64 = 50;
/// The number of test images in one batch of an evaluation.
const TEST_BATCH: usize = 250;

/// The settings in which the jobs of this benchmark differ.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Setting {
    pub sync: SyncSpec,
    pub workers: u32,
    /// True if the last worker is slowed down.
    pub slowed: bool,
}

/// The progress and the test accuracy of a job at one time.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Point {
    pub seconds: f64,
    pub updates: f64,
    /// The percentage of test images that are classified correctly.
    pub accuracy: f64,
}

/// The result of one trial of a job.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Trial {
    /// The time from the beginning of the job's first step, on any worker, to the end of the last step of
    /// worker 0, in seconds.
    pub seconds: f64,
    pub updates: u64,
    pub points: Vec<Point>,
    pub received: u64,
    pub stale: u64,
    /// The mean staleness, in versions, of the pushes that were applied or held for a joint update.
    pub staleness_mean: f64,
    pub staleness_max: u64,
    /// The maximum number of steps by which the sender of an applied or held push was behind the fastest
    /// worker when the push arrived.
    pub steps_behind_max: u64,
}

/// The data, the model, and the settings that all jobs share.
pub(crate) struct Bench {
    graph: GraphSpec,
    input: InputSpec,
    test: Mapped,
    /// The number of gradients of a job, summed over all its updates.
    gradients: u64,
    learning_rate: f32,
    slow_down: u32,
    step: Duration,
}

/// Returns the MLP of the example `mnist`.
fn mlp() -> Result<GraphSpec, GraphError> {
    let mut g = GraphBuilder::new("mlp");
    let images = g.input("features", [28, 28]);
    let labels = g.labels("labels");
    let x = flatten().apply(&mut g, images);
    let x = dense("dense1", 512).relu().apply(&mut g, x);
    let x = dense("dense2", 512).relu().apply(&mut g, x);
    let logits = dense("logits", 10).apply(&mut g, x);
    let loss = g.softmax_cross_entropy(logits, labels);
    let accuracy = g.accuracy(logits, labels);
    g.finish(loss, &[("accuracy", accuracy)])
}

fn input(data_dir: Option<&Path>) -> anyhow::Result<InputSpec> {
    let idx = |images: &str, labels: &str| DatasetSpec::Idx { images: images.into(), labels: labels.into() };
    let digits = |seed, examples| DatasetSpec::Digits { seed, examples };
    let Some(directory) = data_dir else {
        return Ok(InputSpec::new(digits(0, 20_000), digits(1, 5_000)));
    };
    let mnist = InputSpec::new(
        idx("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
        idx("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
    );
    Ok(input_in_directory(&mnist, directory)?)
}

impl Bench {
    pub(crate) fn new(
        data_dir: Option<&Path>,
        epochs: f64,
        learning_rate: f32,
        slow_down: u32,
        step: Duration,
    ) -> anyhow::Result<Self> {
        let input = input(data_dir)?;
        let examples = load(&input.train, None)?.len() as f64;
        let test = Mapped::testing(load(&input.test, None)?, &input.map)?;
        // The number is divisible by 6, so that it can be divided evenly among one, two or three workers.
        let gradients = ((epochs * examples / f64::from(BATCH) / 6.0) as u64).max(1) * 6;
        Ok(Self { graph: mlp()?, input, test, gradients, learning_rate, slow_down, step })
    }

    /// Trains one job to its end, and then evaluates the snapshots that were kept during the training.
    pub(crate) fn run(&self, setting: Setting, seed: u64) -> anyhow::Result<Trial> {
        let Setting { sync, workers, slowed } = setting;
        let updates = self.gradients / u64::from(sync.gradients_per_update(workers));
        let job = JobSpec {
            batch_size: BATCH,
            optimizer: OptimizerSpec::sgd(self.learning_rate),
            schedule: ScheduleSpec::Cosine,
            sync,
            seed,
            ..JobSpec::new(self.graph.clone(), self.input.clone(), updates)
        };
        let watch = Arc::new(Watch { every: (self.gradients / POINTS).max(1), ..Watch::default() });
        let mut cluster = Embedded::new(1, workers);
        cluster.worker_config.threads = 1;
        let (least, slow_down, watched) = (self.step, self.slow_down, Arc::clone(&watch));
        cluster.worker_config.replica = Arc::new(move |config| {
            let worker = config.device.task.index;
            let slow_down = if slowed && worker + 1 == workers { slow_down } else { 1 };
            let replica = GraphReplica::new(config)?;
            let watch = Arc::clone(&watched);
            Ok(Box::new(Witness { replica, worker, least, slow_down, steps: 0, watch }))
        });
        let (tell, _told) = tokio::sync::watch::channel(JobProgress::default());
        let run = cluster.run(job, tell, tokio_util::sync::CancellationToken::new());
        let report = actix_rt::System::new().block_on(run)?;

        let (_, shard) = report.shards.first().context("a report without shards")?;
        let kept = std::mem::take(&mut *watch.kept.lock().expect("no replica panicked"));
        // The fraction of pushes that become updates is assumed to be constant throughout the job.
        let per_push = updates as f64 / shard.pushes.received as f64;
        let mut points = self.evaluate(kept.snapshots, per_push)?;
        let accuracy = report.evaluation.metrics.first().context("an evaluation without metrics")?.value;
        let seconds = kept.ended.as_secs_f64();
        points.push(Point { seconds, updates: updates as f64, accuracy: f64::from(accuracy) * 100.0 });
        Ok(Trial {
            seconds,
            updates,
            points,
            received: shard.pushes.received,
            stale: shard.pushes.stale,
            staleness_mean: shard.staleness.sum as f64 / shard.staleness.count().max(1) as f64,
            staleness_max: shard.staleness.max,
            steps_behind_max: shard.steps_behind.max,
        })
    }

    fn evaluate(&self, snapshots: Vec<Snapshot>, per_push: f64) -> anyhow::Result<Vec<Point>> {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let mut replica = GraphReplica::new(ReplicaConfig {
            graph: &self.graph,
            examples: TEST_BATCH,
            columns: self.test.columns(),
            fetches: &[],
            device: Device { task: TaskId::worker(0), kind: DeviceKind::Cpu, index: 0 },
            compute: Compute::new(threads, 1)?,
        })?;
        let point = |Snapshot { seconds, pushes, values }| {
            let mut right = 0.0;
            for batch in in_order(&self.test, TEST_BATCH)? {
                right += f64::from(replica.evaluate(&batch, &values)?[1]) * batch.examples as f64;
            }
            let accuracy = right / self.test.len() as f64 * 100.0;
            Ok(Point { seconds, updates: pushes as f64 * per_push, accuracy })
        };
        snapshots.into_iter().map(point).collect()
    }
}

/// The record of a job, to which all its replicas write.
#[derive(Default)]
struct Watch {
    /// The time at which the job's first step began, on any replica.
    start: OnceLock<Instant>,
    /// The number of pushes that the shard has answered, summed over all workers.
    pushes: AtomicU64,
    /// The minimum number of answered pushes between two snapshots.
    every: u64,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    snapshots: Vec<Snapshot>,
    /// The time from `Watch::start` to the end of the latest step of worker 0.
    ended: Duration,
}

/// The variables' values at one time, in the buffers in which they were received.
struct Snapshot {
    seconds: f64,
    pushes: u64,
    values: Values,
}

/// A replica that makes its steps longer and records them in a [`Watch`].
struct Witness {
    replica: GraphReplica,
    worker: u32,
    /// The minimum duration of a step. A shorter step is extended to it; then the duration is multiplied by
    /// `slow_down`.
    least: Duration,
    /// The factor by which the duration of a step is multiplied.
    slow_down: u32,
    steps: u64,
    watch: Arc<Watch>,
}

impl Replica for Witness {
    fn step(
        &mut self,
        feed: Feed<'_>,
        values: &Values,
        gradients: &mut Gradients,
        complete: &mut Complete<'_>,
    ) -> Result<f32, ReplicaError> {
        let begun = Instant::now();
        let start = *self.watch.start.get_or_init(|| begun);
        // When a worker begins a step, its previous push has been answered. Only the first step has no
        // previous push.
        let pushes = match self.steps {
            0 => self.watch.pushes.load(Ordering::Relaxed),
            _ => self.watch.pushes.fetch_add(1, Ordering::Relaxed) + 1,
        };
        self.steps += 1;
        if self.worker == 0 {
            let mut kept = self.watch.kept.lock().expect("no replica panicked");
            if pushes >= kept.snapshots.last().map_or(0, |last| last.pushes + self.watch.every) {
                let seconds = begun.duration_since(start).as_secs_f64();
                kept.snapshots.push(Snapshot { seconds, pushes, values: values.clone() });
            }
        }
        let loss = self.replica.step(feed, values, gradients, complete)?;
        let wanted = begun.elapsed().max(self.least) * self.slow_down;
        std::thread::sleep(wanted.saturating_sub(begun.elapsed()));
        if self.worker == 0 {
            self.watch.kept.lock().expect("no replica panicked").ended = start.elapsed();
        }
        Ok(loss)
    }

    fn prepare(&mut self, examples: usize) -> Result<(), ReplicaError> {
        self.replica.prepare(examples)
    }

    fn evaluate(&mut self, batch: &Batch, values: &Values) -> Result<Vec<f32>, ReplicaError> {
        self.replica.evaluate(batch, values)
    }
}
