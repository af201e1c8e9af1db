//! Tests of embedded clusters through the library. Several clusters can run in one process, and are
//! independent of each other.

use std::net::TcpStream;
use std::path::Path;
use std::thread::JoinHandle;

use pushpull::nn::{Layer, dense};
use pushpull::{
    DatasetSpec, Embedded, GraphBuilder, InputSpec, JobProgress, JobReport, JobSpec, OptimizerSpec, Outcome,
    PartitionerSpec, PlacementSpec, PsConfig, TrainArgs,
};
use pushpull_transport::ServerConfig;
use pushpull_transport::wire::Limits;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::harness::{ENDLESS, Endpoint, PATIENCE, free_port, wait_until, write_secret};

fn job(seed: u64, steps: u64) -> JobSpec {
    job_called("softmax", seed, steps)
}

fn job_called(model: &str, seed: u64, steps: u64) -> JobSpec {
    job_with(model, 32, seed, steps)
}

fn job_with(model: &str, hidden: usize, seed: u64, steps: u64) -> JobSpec {
    let mut g = GraphBuilder::new(model);
    let images = g.input("features", [28, 28]);
    let labels = g.labels("labels");
    let x = g.reshape(images, [784]);
    let x = dense("hidden", hidden).relu().apply(&mut g, x);
    let logits = dense("logits", 10).apply(&mut g, x);
    let loss = g.softmax_cross_entropy(logits, labels);
    let accuracy = g.accuracy(logits, labels);
    let input = InputSpec::new(
        DatasetSpec::Digits { seed: 1, examples: 1000 },
        DatasetSpec::Digits { seed: 2, examples: 200 },
    );
    JobSpec {
        batch_size: 16,
        optimizer: OptimizerSpec::adam(0.002),
        placement: PlacementSpec { partitioner: PartitionerSpec::Fixed { slices: 3 }, ..Default::default() },
        seed,
        ..JobSpec::new(g.finish(loss, &[("accuracy", accuracy)]).expect("a graph"), input, steps)
    }
}

async fn train(ps: u32, workers: u32, job: JobSpec) -> anyhow::Result<JobReport> {
    let (tell, _told) = watch::channel(JobProgress::default());
    Embedded::new(ps, workers).run(job, tell, CancellationToken::new()).await
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    actix_rt::System::new().block_on(future)
}

#[track_caller]
fn holds(report: &JobReport, steps: u64) {
    assert_eq!(report.updates_applied, steps);
    for (shard, seen) in &report.shards {
        assert!(seen.pushes.add_up(), "V2 on {shard}: {seen:?}");
        assert_eq!((seen.pushes.applied, seen.version.0), (steps, steps), "V3 on {shard}: {seen:?}");
        assert_eq!(seen.staleness.count(), steps);
    }
}

#[test]
fn a_ps_has_as_many_shards_as_its_frames_need() {
    let job = JobSpec { placement: PlacementSpec::default(), ..job(1, 100) };
    let (one, several) = block_on(async {
        let one = train(1, 1, job.clone()).await.unwrap();
        // The largest variable has 100 352 bytes.
        let limits = Limits { payload_bytes_max: 30_000, ..Limits::default() };
        let server = ServerConfig { limits, ..ServerConfig::default() };
        let ps_config = PsConfig { server, ..PsConfig::default() };
        let (tell, _told) = watch::channel(JobProgress::default());
        let limited = Embedded { ps_config, ..Embedded::new(1, 1) };
        (one, limited.run(job, tell, CancellationToken::new()).await.unwrap())
    });
    holds(&one, 100);
    holds(&several, 100);
    assert_eq!((one.shards.len(), several.shards.len()), (1, 4));
    assert!(several.shards.iter().all(|(_, shard)| shard.bytes <= 30_000));
    assert_eq!(one.evaluation.variables_crc32c, several.evaluation.variables_crc32c);
}

#[test]
fn a_large_variable_is_split_over_the_ps_tasks() {
    // The largest variable has 3 MiB, the others have 45 KiB together.
    let job = JobSpec { placement: PlacementSpec::default(), ..job_with("wide", 1004, 1, 10) };
    let (one, two) =
        block_on(async { (train(1, 1, job.clone()).await.unwrap(), train(2, 1, job).await.unwrap()) });
    let bytes: Vec<u64> = two.shards.iter().map(|(_, shard)| shard.bytes).collect();
    assert_eq!((one.shards.len(), bytes.len()), (1, 2));
    assert!(bytes[0].abs_diff(bytes[1]) < 64 << 10, "{bytes:?}");
    assert_eq!(one.evaluation.variables_crc32c, two.evaluation.variables_crc32c);
}

#[test]
fn two_clusters_at_once_train_as_each_does_alone() {
    let (one, other) = (job(1, 200), job(2, 150));
    let checksum = |report: &JobReport| report.evaluation.variables_crc32c;
    let alone = block_on(async {
        (
            checksum(&train(1, 1, one.clone()).await.unwrap()),
            checksum(&train(2, 1, other.clone()).await.unwrap()),
        )
    });
    let (left, right) = block_on(async { tokio::join!(train(1, 1, one), train(2, 1, other)) });
    let (left, right) = (left.unwrap(), right.unwrap());
    holds(&left, 200);
    holds(&right, 150);
    assert_eq!((checksum(&left), checksum(&right)), alone);
    assert_ne!(alone.0, alone.1);
}

#[test]
fn a_cluster_that_fails_does_not_touch_its_neighbour() {
    let mut bad = job(1, 100);
    bad.input.train = DatasetSpec::Idx { images: "/nowhere/images".into(), labels: "/nowhere/labels".into() };
    let (bad, good) = block_on(async { tokio::join!(train(1, 2, bad), train(2, 3, job(2, 300))) });
    let error = format!("{:#}", bad.unwrap_err());
    assert!(error.contains("/nowhere/images"), "{error}");
    holds(&good.unwrap(), 300);
}

#[test]
fn an_interrupt_ends_a_cluster_early_and_says_so() {
    let (tell, mut told) = watch::channel(JobProgress::default());
    let interrupt = CancellationToken::new();
    let (result, ()) = block_on(async {
        let cluster = Embedded::new(1, 2);
        let run = cluster.run(job(1, 1_000_000_000), tell, interrupt.clone());
        let stop = async {
            told.wait_for(|now| now.global_step.0 > 0).await.expect("it trains");
            interrupt.cancel();
        };
        tokio::join!(run, stop)
    });
    let error = format!("{:#}", result.unwrap_err());
    assert!(error.contains("interrupted at step"), "{error}");
}

#[test]
fn an_empty_cluster_is_refused() {
    for ps in [0, 1] {
        let error = format!("{:#}", block_on(train(ps, 0, job(1, 10))).unwrap_err());
        assert!(error.contains("has no task"), "{error}");
    }
}

/// A cluster in this process that has an endpoint, and is started with flags like a program.
struct Observed {
    name: &'static str,
    endpoint: Endpoint,
    token: String,
    running: JoinHandle<Outcome>,
}

impl Observed {
    fn start(name: &'static str, dir: &Path, seed: u64) -> Self {
        let token = format!("token-of-{name}");
        let token_file = dir.join(name);
        write_secret(&token_file, &token);
        let address = format!("127.0.0.1:{}", free_port());
        let flags = [
            name.to_owned(),
            format!("--steps={ENDLESS}"),
            format!("--seed={seed}"),
            "--workers=1".to_owned(),
            "--threads=1".to_owned(),
            format!("--http-addr={address}"),
            format!("--http-token-file={}", token_file.display()),
        ];
        let running = std::thread::spawn(move || {
            let job = job_called(name, seed, ENDLESS);
            pushpull::main_from(flags, |args: TrainArgs| args.run(job.graph, job.input))
        });
        wait_until(&format!("the endpoint of {name}"), PATIENCE, || TcpStream::connect(&address).ok());
        let endpoint = Endpoint(address);
        endpoint.wait_for_update();
        Self { name, endpoint, token, running }
    }

    fn flag(&self, name: &str) -> Value {
        let config = self.endpoint.json("/config");
        let flags = config["flags"].as_array().expect("a list").iter();
        flags.filter(|flag| flag["name"] == name).map(|flag| flag["value"].clone()).next().expect("a flag")
    }
}

#[test]
fn clusters_in_one_process_show_only_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let both = [Observed::start("left", dir.path(), 3), Observed::start("right", dir.path(), 4)];
    for (own, other, seed) in [(&both[0], &both[1], "3"), (&both[1], &both[0], "4")] {
        assert_eq!((own.flag("seed"), own.flag("http-addr")), (seed.into(), own.endpoint.0.clone().into()));
        assert_eq!(own.endpoint.json("/job")["job"]["name"], own.name);
        assert!(own.endpoint.get("/").contains("<html"), "{} has a page", own.name);
        let log = own.endpoint.json("/log");
        let lines = log.as_array().expect("a list");
        let says =
            |text: &str| lines.iter().any(|line| line["text"].as_str().is_some_and(|own| own.contains(text)));
        assert!(says(&own.endpoint.0) && !says(&other.endpoint.0), "{}: {log}", own.name);
        assert!(lines.iter().any(|line| line["task"] == "chief/0"), "{}: {log}", own.name);
        assert!(!lines.iter().any(|line| line["task"] == other.name), "{}: {log}", own.name);
        let registered = lines
            .iter()
            .filter(|line| line["text"].as_str().is_some_and(|text| text.contains("worker registered")));
        assert_eq!(registered.count(), 1, "{}: {log}", own.name);
        assert_eq!(own.endpoint.stop(&other.token), 401, "the other one's token is refused");
    }
    for own in both {
        assert_eq!(own.endpoint.stop(&own.token), 202);
        own.running.join().expect("it does not panic").expect("it stops without an error");
    }
}
