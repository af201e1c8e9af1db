//! The embedded cluster through the library: several of them live in one process and know nothing of each other.

use pushpull::nn::{Layer, dense};
use pushpull::{
    DatasetSpec, Embedded, GraphBuilder, InputSpec, JobProgress, JobReport, JobSpec, OptimizerSpec,
    PartitionerSpec, PlacementSpec,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

fn job(seed: u64, steps: u64) -> JobSpec {
    let mut g = GraphBuilder::new("softmax");
    let images = g.input("features", [28, 28]);
    let labels = g.labels("labels");
    let x = g.reshape(images, [784]);
    let x = dense("hidden", 32).relu().apply(&mut g, x);
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
    for (ps, workers, job_name) in [(0, 1, "ps"), (1, 0, "worker")] {
        let error = format!("{:#}", block_on(train(ps, workers, job(1, 10))).unwrap_err());
        assert!(error.contains(&format!("job '{job_name}' has no task")), "{error}");
    }
}
