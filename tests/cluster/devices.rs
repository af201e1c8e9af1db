//! Tests of workers with several devices. Together the devices compute the same as one device with the whole
//! batch, and operations can request a device.

use pushpull::{
    DatasetSpec, DeviceList, Embedded, GraphBuilder, GraphSpec, InitializerSpec, InputSpec, JobProgress,
    JobReport, JobSpec, PartitionerSpec, PlacementSpec,
};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::harness::{Job, Program, tool};

/// Returns a model with one hidden layer, which has batch normalisation if `normalised` is true, and dropout
/// otherwise.
fn graph(normalised: bool) -> GraphSpec {
    let mut g = GraphBuilder::new("two layers");
    let images = g.input("features", [28, 28]);
    let labels = g.labels("labels");
    let x = g.reshape(images, [784]);
    let kernel = g.variable("hidden/kernel", [784, 32], InitializerSpec::GlorotUniform);
    let x = g.matmul(x, kernel);
    let x = if normalised {
        let vector = |g: &mut GraphBuilder, name: &str, value| {
            g.variable(name, [32], InitializerSpec::Constant { value })
        };
        let (gamma, beta) = (vector(&mut g, "gamma", 1.0), vector(&mut g, "beta", 0.0));
        let mean = g.untrained("mean", [32], InitializerSpec::Zeros);
        let variance = g.untrained("variance", [32], InitializerSpec::Constant { value: 1.0 });
        g.batch_norm(x, [gamma, beta], [mean, variance], 1e-3, 0.9)
    } else {
        g.dropout(x, 0.2)
    };
    let x = g.relu(x);
    let kernel = g.variable("logits/kernel", [32, 10], InitializerSpec::GlorotUniform);
    let logits = g.matmul(x, kernel);
    let loss = g.softmax_cross_entropy(logits, labels);
    let accuracy = g.accuracy(logits, labels);
    g.finish(loss, &[("accuracy", accuracy)]).expect("a graph")
}

fn train(graph: GraphSpec, devices: usize, threads: usize, steps: u64) -> JobReport {
    let digits = |seed, examples| DatasetSpec::Digits { seed, examples };
    let job = JobSpec {
        batch_size: 20,
        placement: PlacementSpec { partitioner: PartitionerSpec::Fixed { slices: 3 }, ..Default::default() },
        seed: 5,
        ..JobSpec::new(graph, InputSpec::new(digits(1, 1000), digits(2, 200)), steps)
    };
    let mut cluster = Embedded::new(2, 1);
    cluster.worker_config.devices = DeviceList::cpus(devices);
    cluster.worker_config.threads = threads;
    let (tell, _told) = watch::channel(JobProgress::default());
    let run = cluster.run(job, tell, CancellationToken::new());
    actix_rt::System::new().block_on(run).expect("the job trains to its end")
}

#[test]
fn any_number_of_devices_gives_the_same_losses() {
    let losses = |report: &JobReport| [report.train_loss, report.evaluation.loss];
    let one = train(graph(false), 1, 1, 60);
    assert!(one.evaluation.metrics[0].value > 0.4, "{one:?}");
    // The batch of 20 examples is divided into 10 + 10, or 7 + 7 + 6.
    for (devices, threads) in [(1, 2), (2, 1), (2, 2), (3, 2)] {
        let several = train(graph(false), devices, threads, 60);
        for (one, several) in losses(&one).into_iter().zip(losses(&several)) {
            assert!((one - several).abs() < 2e-4, "{devices} devices: {several}, one: {one}");
        }
    }
}

#[test]
fn the_evaluation_uses_the_moving_averages_of_the_ps() {
    for devices in [1, 2] {
        let report = train(graph(true), devices, 1, 150);
        let accuracy = report.evaluation.metrics[0].value;
        // With the initial values of the moving averages, mean 0 and variance 1, the accuracy would be
        // lower.
        assert!(accuracy > 0.8, "{devices} devices: {report:?}");
        assert!((report.evaluation.loss - report.train_loss).abs() < 0.5, "{report:?}");
    }
}

#[test]
fn a_missing_device_is_replaced_or_refused_by_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let job = Job::new(dir.path(), 30);
    job.edit(|job| job["graph"]["nodes"][5]["device"] = json!("/job:worker/device:GPU:0"));
    let run = |flags: &[&str]| {
        let mut command = tool();
        command.args(["local", "--ps=1", "--workers=1", "--devices=2", "--log-placement", "--job"]);
        Program::run(dir.path(), "local", command.arg(job.path()).args(flags))
    };
    run(&["--soft-placement=false"])
        .expect(1)
        .says("requests /job:worker/device:GPU:0")
        .says("which does not match /job:worker/task:0/device:CPU:0");
    run(&[])
        .expect(0)
        .says("although it requests /job:worker/device:GPU:0")
        .says("/job:worker/task:0/device:CPU:0, /job:worker/task:0/device:CPU:1");
}
