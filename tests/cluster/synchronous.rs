//! Tests of S3: synchronous training with several workers gives the same values as training with one worker
//! that has the whole batch. The values of the final evaluation are compared.

use std::sync::{Arc, Mutex};

use pushpull::{
    DatasetSpec, Embedded, GraphBuilder, GraphSpec, InitializerSpec, InputSpec, JobProgress, JobReport,
    JobSpec, OptimizerSpec, PartitionerSpec, PlacementSpec, ShuffleSpec, SyncSpec, UnaryOp,
};
use pushpull_engine::Feed;
use pushpull_input::Batch;
use pushpull_worker::{Complete, Gradients, GraphReplica, Replica, ReplicaError, Values};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use pushpull_messages::id::VariableId;

/// The number of examples in one update, over all workers. It can be divided among 1 to 5 of them.
const WHOLE: u32 = 60;

/// Returns a smooth model, in which rounding errors are not amplified.
fn graph() -> GraphSpec {
    let mut g = GraphBuilder::new("two layers");
    let images = g.input("features", [28, 28]);
    let labels = g.labels("labels");
    let x = g.reshape(images, [784]);
    let kernel = g.variable("hidden/kernel", [784, 24], InitializerSpec::GlorotUniform);
    let x = g.matmul(x, kernel);
    let x = g.unary(UnaryOp::Tanh, x);
    let kernel = g.variable("logits/kernel", [24, 10], InitializerSpec::GlorotUniform);
    let bias = g.variable("logits/bias", [10], InitializerSpec::Zeros);
    let x = g.matmul(x, kernel);
    let logits = g.bias_add(x, bias);
    let loss = g.softmax_cross_entropy(logits, labels);
    g.finish(loss, &[]).expect("a graph")
}

/// Returns a job without shuffling. Each of n workers has every n-th example, so their batches together are
/// the batch of a single worker.
pub(crate) fn job(workers: u32, optimizer: &OptimizerSpec, steps: u64) -> JobSpec {
    let digits = |seed, examples| DatasetSpec::Digits { seed, examples };
    JobSpec {
        batch_size: WHOLE / workers,
        optimizer: optimizer.clone(),
        sync: SyncSpec::SYNC,
        placement: PlacementSpec { partitioner: PartitionerSpec::Fixed { slices: 3 }, ..Default::default() },
        seed: 3,
        ..JobSpec::new(
            graph(),
            InputSpec { shuffle: ShuffleSpec::None, ..InputSpec::new(digits(1, 960), digits(2, 10)) },
            steps,
        )
    }
}

/// The values of all variables in the final evaluation.
type Seen = Arc<Mutex<Vec<Vec<f32>>>>;

/// A replica that stores the values that it evaluates, for the test.
struct Witness {
    replica: GraphReplica,
    variables: u32,
    seen: Seen,
}

impl Replica for Witness {
    fn step(
        &mut self,
        feed: Feed<'_>,
        values: &Values,
        gradients: &mut Gradients,
        complete: &mut Complete<'_>,
    ) -> Result<f32, ReplicaError> {
        self.replica.step(feed, values, gradients, complete)
    }

    fn prepare(&mut self, examples: usize) -> Result<(), ReplicaError> {
        self.replica.prepare(examples)
    }

    fn evaluate(&mut self, batch: &Batch, values: &Values) -> Result<Vec<f32>, ReplicaError> {
        let all = (0..self.variables).map(|variable| values.variable(VariableId(variable)).to_vec());
        *self.seen.lock().unwrap() = all.collect();
        self.replica.evaluate(batch, values)
    }
}

/// Runs a job on one ps task. Returns the final values of its variables, and the report.
fn train(workers: u32, shards: u32, threads: usize, job: JobSpec) -> (Vec<Vec<f32>>, JobReport) {
    train_on((1, workers), shards, threads, job)
}

/// Runs a job on this number of ps tasks and workers. With 0 ps tasks, the workers store the variables.
pub(crate) fn train_on(
    (ps, workers): (u32, u32),
    shards: u32,
    threads: usize,
    job: JobSpec,
) -> (Vec<Vec<f32>>, JobReport) {
    let seen = Seen::default();
    let mut cluster = Embedded::new(ps, workers);
    cluster.ps_config.shards = shards;
    cluster.worker_config.threads = threads;
    let (variables, witness) = (job.graph.variables.len() as u32, Arc::clone(&seen));
    cluster.worker_config.replica = Arc::new(move |config| {
        let (replica, seen) = (GraphReplica::new(config)?, Arc::clone(&witness));
        Ok(Box::new(Witness { replica, variables, seen }))
    });
    let (tell, _told) = watch::channel(JobProgress::default());
    let run = cluster.run(job, tell, CancellationToken::new());
    let report = actix_rt::System::new().block_on(run).expect("the job trains to its end");
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    (seen, report)
}

/// Returns the greatest absolute difference of two elements.
pub(crate) fn difference(one: &[Vec<f32>], other: &[Vec<f32>]) -> f32 {
    assert_eq!(one.len(), other.len());
    let pairs = one.iter().flatten().zip(other.iter().flatten());
    pairs.map(|(one, other)| (one - other).abs()).fold(0.0, f32::max)
}

/// Returns the optimizers for which several workers give the values of one. Not Lion: where the sums of
/// gradients are almost 0, rounding decides about the sign.
pub(crate) fn optimizers() -> [OptimizerSpec; 8] {
    [
        OptimizerSpec::sgd(0.1),
        OptimizerSpec::momentum(0.02, 0.9),
        OptimizerSpec::adam(0.001),
        OptimizerSpec::adamw(0.001),
        OptimizerSpec::adagrad(0.02),
        OptimizerSpec::rmsprop(0.001),
        OptimizerSpec::ftrl(0.02),
        OptimizerSpec::lamb(0.02),
    ]
}

#[test]
fn several_workers_are_one_with_the_whole_batch() {
    for optimizer in optimizers() {
        let (expected, _) = train(1, 1, 1, job(1, &optimizer, 50));
        let (start, _) = train(1, 1, 1, job(1, &optimizer, 1));
        assert!(difference(&start, &expected) > 0.01, "{}: it has learnt something", optimizer.name());
        let with_ps = [(1, 1, 3), (1, 2, 1), (1, 3, 3), (1, 4, 1), (1, 5, 3)];
        let mirrored = (1..=5).map(|workers| (0, workers, 1));
        for (ps, workers, shards) in with_ps.into_iter().chain(mirrored) {
            let (values, report) = train_on((ps, workers), shards, 1, job(workers, &optimizer, 50));
            let off = difference(&values, &expected);
            let name = optimizer.name();
            assert!(off <= 1e-5, "{name}, {ps} ps, {workers} workers, {shards} shards: {off}");
            for (_, snapshot) in &report.shards {
                assert_eq!(snapshot.version.0, 50);
                assert_eq!(snapshot.pushes.held, 50 * u64::from(workers));
            }
        }
    }
}

/// Returns a job whose gradients keep their sign: the optimizer Lion uses only the sign, and rounding decides
/// about it where a sum of gradients is almost 0.
fn steep_job(workers: u32) -> JobSpec {
    let mut g = GraphBuilder::new("steep");
    let features = g.input("features", [1]);
    let labels = g.input("labels", []);
    let kernel = g.variable("kernel", [1, 1], InitializerSpec::Zeros);
    let x = g.matmul(features, kernel);
    let x = g.reshape(x, []);
    let loss = g.mean_squared_error(x, labels);
    let points =
        |seed| DatasetSpec::Linear { seed, examples: 960, weights: vec![100.0], bias: 0.0, noise: 0.1 };
    let input = InputSpec { shuffle: ShuffleSpec::None, ..InputSpec::new(points(1), points(2)) };
    JobSpec {
        batch_size: WHOLE / workers,
        optimizer: OptimizerSpec::lion(0.01),
        sync: SyncSpec::SYNC,
        ..JobSpec::new(g.finish(loss, &[]).expect("a graph"), input, 50)
    }
}

#[test]
fn several_workers_are_one_with_lion() {
    let (expected, _) = train(1, 1, 1, steep_job(1));
    assert!(expected[0][0] > 0.4, "each of 50 steps is 0.01: {expected:?}");
    for (ps, workers) in [1, 0].into_iter().flat_map(|ps| (1..=5).map(move |workers| (ps, workers))) {
        let (values, _) = train_on((ps, workers), 1, 1, steep_job(workers));
        let off = difference(&values, &expected);
        assert!(off <= 1e-5, "{ps} ps, {workers} workers: {off}");
    }
}

#[test]
fn two_deterministic_runs_leave_the_same_bits() {
    let job = || JobSpec { deterministic: true, ..job(4, &OptimizerSpec::adam(0.001), 60) };
    let (one, report) = train(4, 3, 1, job());
    for (ps, shards) in [(1, 2), (0, 1), (0, 2)] {
        let (other, again) = train_on((ps, 4), shards, 1, job());
        assert_eq!(difference(&one, &other), 0.0, "{ps} ps, {shards} shards");
        assert_eq!(report.evaluation.variables_crc32c, again.evaluation.variables_crc32c);
    }
}
