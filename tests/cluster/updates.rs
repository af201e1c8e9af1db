//! Tests of how gradients become updates in a whole embedded cluster: moving averages, groups of variables,
//! steps of several batches, and skipped steps.

use std::collections::BTreeMap;

use pushpull::nn::{Layer, dense};
use pushpull::{
    CheckpointConfig, Cluster, CsvColumnSpec, CsvFieldsSpec, CsvSpec, DatasetSpec, Embedded, GradientSpec,
    GraphBuilder, GroupSpec, InputSpec, Job, JobProgress, JobReport, JobSpec, NotFiniteSpec, NumberSpec,
    OptimizerSpec, PartitionerSpec, PlacementSpec, SyncSpec,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Returns a job that fits a line to points.
fn job(train: DatasetSpec, learning_rate: f32, steps: u64) -> JobSpec {
    let mut g = GraphBuilder::new("line");
    let x = g.input("features", [1]);
    let labels = g.input("labels", []);
    let y = dense("line", 1).apply(&mut g, x);
    let y = g.reshape(y, []);
    let loss = g.mean_squared_error(y, labels);
    JobSpec {
        batch_size: 4,
        optimizer: OptimizerSpec::sgd(learning_rate),
        ..JobSpec::new(g.finish(loss, &[]).expect("a graph"), InputSpec::new(train, points()), steps)
    }
}

fn points() -> DatasetSpec {
    DatasetSpec::Linear { seed: 1, examples: 40, weights: vec![3.0], bias: 1.0, noise: 0.0 }
}

fn train(job: JobSpec) -> anyhow::Result<JobReport> {
    let (tell, _told) = watch::channel(JobProgress::default());
    actix_rt::System::new().block_on(Embedded::new(2, 1).run(job, tell, CancellationToken::new()))
}

#[test]
fn the_averages_are_evaluated_where_the_job_keeps_them() {
    let report = |rate: f32, average: Option<f32>| {
        train(JobSpec { average, ..job(points(), rate, 1) }).unwrap().evaluation
    };
    let loss = |rate: f32| f64::from(report(rate, None).loss);
    // The loss after one step is a quadratic function of the learning rate, which three evaluations
    // determine.
    let (nothing, once, twice) = (loss(1e-30), loss(0.1), loss(0.2));
    let square = (twice - 2.0 * once + nothing) / 2.0;
    let at = |share: f64| nothing + (once - nothing - square) * share + square * share * share;
    // After the first update an average contains 1/10 of the initial value, even if the configured decay is
    // greater.
    let averaged = report(0.1, Some(0.99));
    assert!((f64::from(averaged.loss) - at(0.9)).abs() < 1e-4 * at(0.9), "{averaged:?}, not {}", at(0.9));
    assert!((at(0.9) - once).abs() > 0.01 * once, "so far apart that it can be told: {once}");
    assert_ne!(averaged.variables_crc32c, report(0.1, None).variables_crc32c);
}

/// Trains two layers for some steps, with groups, on two workers and two ps tasks. Returns the bits of every
/// variable, by name.
fn trained(optimizer: OptimizerSpec, groups: &[GroupSpec], steps: u64) -> BTreeMap<String, Vec<u32>> {
    let mut g = GraphBuilder::new("two layers");
    let x = g.input("features", [1]);
    let labels = g.input("labels", []);
    let hidden = dense("hidden", 3).apply(&mut g, x);
    let y = dense("line", 1).apply(&mut g, hidden);
    let y = g.reshape(y, []);
    let loss = g.mean_squared_error(y, labels);
    let partitioner = PartitionerSpec::Fixed { slices: 3 };
    let job = Job::new(g.finish(loss, &[]).expect("a graph"), InputSpec::new(points(), points()))
        .optimizer(optimizer)
        .sync(SyncSpec::SYNC)
        .deterministic()
        .batch_size(4)
        .averages(0.9)
        .placement(PlacementSpec { partitioner, ..Default::default() })
        .steps(steps);
    let job = groups.iter().cloned().fold(job, Job::group);
    let trained = job.train(Cluster::embedded(2, 2)).unwrap();
    assert_eq!(trained.report.updates_applied, steps);
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
    trained.values().map(|(name, value)| (name.to_owned(), bits(value.values))).collect()
}

#[test]
fn a_frozen_variable_keeps_its_bits_and_others_move() {
    let sgd = OptimizerSpec::sgd;
    let groups = [
        GroupSpec::new("hidden/kernel").frozen(),
        GroupSpec::new("*/bias").learning_rate_factor(0.5).weight_decay(0.0),
        GroupSpec::new("line/*").optimizer(OptimizerSpec::lamb(0.05)),
    ];
    let one = trained(sgd(0.05), &groups, 1);
    let many = trained(sgd(0.05), &groups, 20);
    assert_eq!(one.len(), 4);
    for (name, bits) in &many {
        assert_eq!(one[name] == *bits, name == "hidden/kernel", "{name}");
    }
    // A learning rate this small changes no initial value but 0.
    let still = trained(sgd(1e-30), &[], 1);
    assert_eq!(still["hidden/kernel"], many["hidden/kernel"], "the initial values");
    let free = trained(sgd(0.05), &[], 1);
    assert_ne!(free["hidden/kernel"], one["hidden/kernel"]);
    // A group without effect, and groups whose factor is part of the rate, leave the bits of the job.
    assert_eq!(trained(sgd(0.05), &[GroupSpec::new("line/*")], 1), free);
    assert_eq!(trained(sgd(0.025), &[GroupSpec::new("*").learning_rate_factor(2.0)], 1), free);
}

#[test]
fn only_chosen_variables_are_averaged() {
    let job = Job::from(JobSpec { average: Some(0.9), ..job(points(), 0.1, 10) }).averages_of(["*/bias"]);
    let trained = job.train(Cluster::embedded(1, 1)).unwrap();
    for (name, value) in trained.values() {
        let average = trained.average(name).unwrap();
        assert_eq!(average.values != value.values, name == "line/bias", "{name}");
    }
}

#[test]
fn a_step_of_several_batches_resumes_with_its_bits() {
    let dir = tempfile::tempdir().unwrap();
    let run = |steps: u64, saves: bool| {
        let spec = JobSpec { accumulate: 3, sync: SyncSpec::SYNC, ..job(points(), 0.05, steps) };
        let job = Job::from(JobSpec { deterministic: true, ..spec });
        let location = dir.path().display().to_string();
        let job = if saves { job.checkpoints(CheckpointConfig::new(location)) } else { job };
        let trained = job.train(Cluster::embedded(2, 2)).unwrap();
        let report = &trained.report;
        let examples = report.examples_per_second * report.seconds;
        let expected = ((report.updates_applied - report.began) * 2 * 3 * 4) as f64;
        assert!((examples - expected).abs() < 1e-6 * expected, "{examples}, not {expected}");
        (report.began, report.variables_crc32c)
    };
    let whole = run(9, false);
    assert_eq!(run(4, true).0, 0);
    // An epoch of a worker has 20 examples, and a step 12: the second run begins within an epoch.
    assert_eq!(run(9, true), (4, whole.1));
}

#[test]
fn repeated_gradients_are_all_used_and_give_the_same_bits() {
    let run = || {
        let spec = JobSpec { sync: "sync:5".parse().unwrap(), ..job(points(), 0.05, 12) };
        let job = Job::from(JobSpec { deterministic: true, ..spec });
        job.train(Cluster::embedded(2, 2)).unwrap().report
    };
    let (one, other) = (run(), run());
    assert_eq!(one.variables_crc32c, other.variables_crc32c);
    assert_eq!((one.updates_applied, one.gradients), (12, 60));
    for shard in &one.shards {
        assert_eq!((shard.version, shard.held, shard.received), (12, 60, 60));
    }
    let few = JobSpec { sync: "sync:1".parse().unwrap(), deterministic: true, ..job(points(), 0.05, 12) };
    let error = Job::from(few).train(Cluster::embedded(1, 2)).unwrap_err().to_string();
    assert!(error.contains("sync:K with K of at least the number of workers"), "{error}");
}

#[test]
fn a_program_changes_gradients_before_they_are_pushed() {
    let of =
        |rate: f32| Job::from(JobSpec { sync: SyncSpec::SYNC, ..job(points(), rate, 10) }).deterministic();
    let plain = of(0.1).train(Cluster::embedded(2, 2)).unwrap().report;
    let halved = of(0.2).on_gradients(|gradients| {
        gradients.for_each(|gradient| gradient.values.iter_mut().for_each(|value| *value /= 2.0));
    });
    let halved = halved.train(Cluster::embedded(2, 2)).unwrap().report;
    assert_eq!(halved.variables_crc32c, plain.variables_crc32c);
}

/// Returns points on a line, of which one is so far away that its gradient is infinite.
fn outlier(dir: &tempfile::TempDir) -> DatasetSpec {
    let path = dir.path().join("points.csv");
    let rows = (0..20).map(|x| if x == 7 { "1e30,1e30\n".into() } else { format!("{x}e-1,{x}e-1\n") });
    std::fs::write(&path, rows.collect::<String>()).unwrap();
    let column = |name: &str, fields| CsvColumnSpec { name: name.into(), fields };
    let columns = vec![
        column("features", CsvFieldsSpec::Numbers(vec![NumberSpec::new(0)])),
        column("labels", CsvFieldsSpec::Number(NumberSpec::new(1))),
    ];
    DatasetSpec::Csv(CsvSpec { files: vec![path], columns, ..Default::default() })
}

#[test]
fn steps_with_non_finite_gradients_are_skipped_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let of = |gradient: GradientSpec| JobSpec { gradient, ..job(outlier(&dir), 0.1, 20) };
    let skip = GradientSpec { not_finite: NotFiniteSpec::Skip, ..Default::default() };
    let report = train(of(skip)).unwrap();
    // One batch of five contains the outlier. The 20 updates take five epochs, with four good batches each.
    assert!((4..=5).contains(&report.skipped), "{report:?}");
    assert_eq!(report.updates_applied, 20);
    assert!(report.train_loss.is_finite() && report.evaluation.loss.is_finite());
    for (_, shard) in &report.shards {
        assert_eq!((shard.pushes.applied, shard.pushes.refused), (20, 0));
    }
    for gradient in [
        GradientSpec::default(),
        GradientSpec { clip_value: Some(1.0), ..Default::default() },
        GradientSpec { clip_global_norm: Some(1.0), ..Default::default() },
    ] {
        let error = format!("{:#}", train(of(gradient)).unwrap_err());
        // The outlier makes the gradient of one variable infinite, and that of another one very large. Either
        // may be refused first.
        let refused = error.contains("is not finite") || error.contains("is too large");
        assert!(error.contains("the gradient of variable 'line/") && refused, "{error}");
    }
}

#[test]
fn a_worker_that_only_skips_gives_up() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = JobSpec { batch_size: 20, ..job(outlier(&dir), 0.1, 20) };
    job.gradient.not_finite = NotFiniteSpec::Skip;
    let error = format!("{:#}", train(job).unwrap_err());
    assert!(error.contains("100 steps in a row") && error.contains("smaller learning rate"), "{error}");
}
