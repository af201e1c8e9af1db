//! Tests of the input in a whole cluster: files that are divided among the workers, stages, and an input
//! that ends.

use std::path::Path;

use pushpull::nn::{Layer, dense};
use pushpull::{
    DatasetSpec, Embedded, Example, FeatureKind, FeatureSpec, GraphBuilder, InputSpec, JobProgress,
    JobReport, JobSpec, MapSpec, RepeatSpec, ShardSpec, ShuffleSpec, StageSpec, TfRecordSpec, TfRecordWriter,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Writes images of 2×2 pixels, with the brighter half as their class.
fn write(path: &Path, examples: u8) {
    let mut writer = TfRecordWriter::create(path).expect("a file");
    for index in 0..examples {
        let (dark, bright) = (index % 50, 200 + index % 40);
        let class = i64::from(index % 2);
        let pixels = if class == 0 { [bright, dark, bright, dark] } else { [dark, bright, dark, bright] };
        let example = Example::new().bytes("image", pixels).ints("class", [class]);
        writer.write_example(&example).expect("a record");
    }
    writer.finish().expect("a whole file");
}

fn records(dir: &Path, names: &[&str]) -> DatasetSpec {
    let features = vec![
        FeatureSpec::new("image", "features", FeatureKind::Pixels, [2, 2, 1]),
        FeatureSpec::new("class", "labels", FeatureKind::Int64, []),
    ];
    let files = names.iter().map(|name| dir.join(name)).collect();
    DatasetSpec::TfRecord(TfRecordSpec { files, features })
}

fn job(dir: &Path, steps: u64) -> JobSpec {
    let names = ["a.tfrecord", "b.tfrecord.gz", "c.tfrecord", "d.tfrecord"];
    names.iter().zip(30..).for_each(|(name, examples)| write(&dir.join(name), examples));
    let mut g = GraphBuilder::new("halves");
    let images = g.input("features", [2, 2, 1]);
    let labels = g.labels("labels");
    let x = g.reshape(images, [4]);
    let logits = dense("logits", 2).apply(&mut g, x);
    let loss = g.softmax_cross_entropy(logits, labels);
    let accuracy = g.accuracy(logits, labels);
    let crop = StageSpec::RandomCrop { pad: 0, size: [2, 2] };
    let input = InputSpec {
        shard: ShardSpec::File,
        shuffle: ShuffleSpec::Buffer(10),
        map: vec![
            MapSpec::new("features", crop),
            MapSpec::new("features", StageSpec::Standardise { mean: vec![0.5], stddev: vec![0.25] }),
        ],
        prefetch: 3,
        ..InputSpec::new(records(dir, &names), records(dir, &names[..1]))
    };
    let graph = g.finish(loss, &[("accuracy", accuracy)]).expect("a graph");
    JobSpec { batch_size: 8, seed: 3, ..JobSpec::new(graph, input, steps) }
}

fn train(workers: u32, job: JobSpec) -> anyhow::Result<JobReport> {
    let (tell, _told) = watch::channel(JobProgress::default());
    let run = async { Embedded::new(1, workers).run(job, tell, CancellationToken::new()).await };
    actix_rt::System::new().block_on(run)
}

#[test]
fn workers_train_on_their_own_files_behind_the_stages() {
    let dir = tempfile::tempdir().unwrap();
    let report = train(2, job(dir.path(), 200)).unwrap();
    assert_eq!(report.updates_applied, 200);
    assert_eq!(report.evaluation.examples, 30);
    assert_eq!(report.evaluation.metrics[0].value, 1.0);
}

#[test]
fn an_input_that_ends_before_the_last_step_ends_the_job() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = job(dir.path(), 1_000_000);
    job.input.repeat = RepeatSpec::Epochs(2);
    let error = format!("{:#}", train(2, job).unwrap_err());
    assert!(error.contains("the input has ended after 2 epochs"), "{error}");
}

/// The input of the second worker is sufficient for one more step than that of the first worker. One worker
/// ends before the other, and the job needs all steps of both.
#[test]
fn a_worker_without_input_leaves_the_rest_to_the_others() {
    let dir = tempfile::tempdir().unwrap();
    // The first worker has 30 + 32 examples, the second one has 31 + 33. Three epochs of them make 23 and 24
    // batches of 8.
    let mut job = job(dir.path(), 47);
    job.input.repeat = RepeatSpec::Epochs(3);
    let report = train(2, job).unwrap();
    assert_eq!((report.updates_applied, report.workers), (47, 2));
    assert_eq!(report.evaluation.examples, 30);
}

#[test]
fn fewer_files_than_workers_cannot_be_shared_by_file() {
    let dir = tempfile::tempdir().unwrap();
    let error = format!("{:#}", train(5, job(dir.path(), 10)).unwrap_err());
    assert!(error.contains("4 files cannot be sharded by file among 5 workers"), "{error}");
}

#[test]
fn a_stage_for_another_column_ends_the_job_before_the_training() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = job(dir.path(), 10);
    job.input.map.push(MapSpec::new("labels", StageSpec::RandomFlip));
    let error = format!("{:#}", train(1, job).unwrap_err());
    assert!(error.contains("'labels'") && error.contains("got i32[]"), "{error}");
}

#[test]
fn a_missing_input_is_named_with_the_existing_ones() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = job(dir.path(), 10);
    job.input.map.push(MapSpec::new("labels", StageSpec::OneHot { classes: 2 }));
    let error = format!("{:#}", train(1, job).unwrap_err());
    assert!(error.contains("input 'labels' asks for i32[]") && error.contains("'labels' f32[2]"), "{error}");
}
