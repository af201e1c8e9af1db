//! Tests of the input in a whole cluster: files that are divided among the workers, stages, and an input
//! that ends.

use std::fs;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use pushpull::data::{Column, Dataset, from_fn};
use pushpull::nn::{Layer, dense};
use pushpull::{
    CategorySpec, CheckpointConfig, Cluster, ColumnSpec, CsvColumnSpec, CsvFieldsSpec, CsvSpec, DatasetSpec,
    Embedded, Example, FeatureKind, FeatureSpec, GraphBuilder, GraphSpec, InputSpec, Job, JobProgress,
    JobReport, JobSpec, MapSpec, NumberSpec, OptimizerSpec, RepeatSpec, ShardSpec, ShuffleSpec, StageSpec,
    StreamSpec, SyncSpec, TensorSpec, TfRecordSpec, TfRecordWriter, VocabularySpec,
};
use pushpull_messages::id::TaskId;
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

/// A softmax regression of examples with `elements` features and 10 classes.
fn regression(shape: &[usize]) -> GraphSpec {
    let mut g = GraphBuilder::new("regression");
    let x = g.input("features", shape.to_vec());
    let labels = g.labels("labels");
    let x = g.reshape(x, [shape.iter().product()]);
    let logits = dense("logits", 10).apply(&mut g, x);
    let loss = g.softmax_cross_entropy(logits, labels);
    let accuracy = g.accuracy(logits, labels);
    g.finish(loss, &[("accuracy", accuracy)]).expect("a graph")
}

/// Returns the pixels of an image. The label, `index % 10`, can be seen in them.
fn pixels(index: usize, count: usize) -> Vec<u8> {
    (0..count)
        .map(|at| if at % 10 == index % 10 { 255 - (index % 7) as u8 } else { (at % 40) as u8 })
        .collect()
}

/// Writes two files of 70 and 50 examples in one of the formats. Returns their spec, and the shape of the
/// features.
fn two_files(dir: &Path, format: &str) -> (DatasetSpec, Vec<usize>) {
    let write = |name: &str, bytes: Vec<u8>| {
        let path = dir.join(name);
        fs::write(&path, bytes).expect("the test's directory can be written");
        path
    };
    let parts = [(0, 70), (70, 120)];
    let both = |bytes: &dyn Fn(usize) -> Vec<u8>| -> Vec<PathBuf> {
        let part = |(begin, end)| write(&format!("{begin}.{format}"), (begin..end).flat_map(bytes).collect());
        parts.map(part).into()
    };
    match format {
        "idx" => {
            let header = |magic: u32, extents: &[u32]| -> Vec<u8> {
                [magic].iter().chain(extents).flat_map(|number| number.to_be_bytes()).collect()
            };
            let images = (0..120).flat_map(|index| pixels(index, 20)).collect();
            let labels = (0..120).map(|index| (index % 10) as u8).collect();
            let images = write("images", [header(0x803, &[120, 4, 5]), images].concat());
            let labels = write("labels", [header(0x801, &[120]), labels].concat());
            (DatasetSpec::Idx { images, labels }, vec![4, 5])
        }
        "cifar10" => {
            let record = |index: usize| [vec![(index % 10) as u8], pixels(index, 3072)].concat();
            (DatasetSpec::Cifar10 { files: both(&record) }, vec![32, 32, 3])
        }
        "csv" => {
            let row = |index: usize| {
                let numbers = pixels(index, 20).iter().map(|pixel| format!("{pixel},")).collect::<String>();
                format!("{numbers}{}\n", index % 10).into_bytes()
            };
            let column = |name: &str, fields| CsvColumnSpec { name: name.into(), fields };
            let (field, vocabulary) = (20u32.into(), VocabularySpec::Ids);
            let columns = vec![
                column("features", CsvFieldsSpec::Numbers((0..20u32).map(NumberSpec::new).collect())),
                column("labels", CsvFieldsSpec::Category(CategorySpec { field, vocabulary, unknown: None })),
            ];
            (DatasetSpec::Csv(CsvSpec { files: both(&row), columns, ..CsvSpec::default() }), vec![20])
        }
        _ => {
            let record = |index: usize| {
                let mut writer = TfRecordWriter::plain(Vec::new());
                let example =
                    Example::new().bytes("image", pixels(index, 20)).ints("label", [index as i64 % 10]);
                writer.write_example(&example).expect("memory");
                writer.finish().expect("memory")
            };
            let features = vec![
                FeatureSpec::new("image", "features", FeatureKind::Pixels, [20]),
                FeatureSpec::new("label", "labels", FeatureKind::Int64, []),
            ];
            (DatasetSpec::TfRecord(TfRecordSpec { files: both(&record), features }), vec![20])
        }
    }
}

/// A data set of a program: a function whose results are changed and filtered.
fn own() -> impl Dataset + 'static {
    let column = |name: &str, example| ColumnSpec { name: name.into(), example };
    let columns = vec![column("features", TensorSpec::f32([20])), column("labels", TensorSpec::i32([]))];
    let make = |index: u64| {
        let features = pixels(index as usize, 20).into_iter().map(f32::from).collect();
        vec![Column::F32(features), Column::I32(vec![index as i32 % 10])]
    };
    let scaled = from_fn(columns.clone(), Some(150), make).map(columns, |row| {
        let features = row.f32("features").unwrap_or_default().iter().map(|x| x / 255.0).collect();
        vec![Column::F32(features), Column::I32(row.i32("labels").unwrap_or_default())]
    });
    scaled.filter(|row| row.i32("labels") != Some(vec![3]))
}

/// Streams each kind of data set, saves in the middle of an epoch, and goes on from there.
#[test]
fn a_stream_goes_on_with_the_same_bits() {
    for kind in ["idx", "cifar10", "csv", "tfrecord", "own"] {
        for interleave in [1, 2] {
            let dir = tempfile::tempdir().unwrap();
            let job = || {
                let job = match kind {
                    "own" => Job::with_data(regression(&[20]), own(), own()),
                    format => {
                        let (set, shape) = two_files(dir.path(), format);
                        Job::new(regression(&shape), InputSpec::new(set.clone(), set))
                    }
                };
                let job = job.sync(SyncSpec::SYNC).deterministic().batch_size(8).steps(40).seed(9);
                let job = job.optimizer(OptimizerSpec::adam(0.01)).shard(ShardSpec::Data);
                job.shuffle(ShuffleSpec::Buffer(16)).stream(StreamSpec::Always).interleave(interleave)
            };
            let train = |job: Job| job.train(Cluster::embedded(1, 2));
            let expected = train(job()).unwrap().report;
            let saving = || CheckpointConfig::new(dir.path().join("checkpoints").display().to_string());
            // An epoch has 120 or 135 examples, and a step takes 16.
            train(job().steps(21).checkpoints(saving())).unwrap();
            let report = train(job().checkpoints(saving())).unwrap().report;
            assert_eq!(report.variables_crc32c, expected.variables_crc32c, "{kind} {interleave}");
            assert_eq!(report.began, 21, "{kind}");
        }
    }
}

#[test]
fn changed_files_are_refused_unless_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let saving = || CheckpointConfig::new(dir.path().join("checkpoints").display().to_string());
    let train = |steps, accept, workers| {
        let (set, shape) = two_files(dir.path(), "csv");
        if steps > 2 {
            let rows = fs::read_to_string(dir.path().join("0.csv")).unwrap();
            fs::write(dir.path().join("0.csv"), rows.lines().take(50).collect::<Vec<_>>().join("\n"))
                .unwrap();
        }
        let job = Job::new(regression(&shape), InputSpec::new(set.clone(), set)).steps(steps).batch_size(8);
        let job = if accept { job.accept_changed_files() } else { job };
        job.checkpoints(saving()).train(Cluster::embedded(1, workers))
    };
    train(2, false, 1).unwrap();
    let error = train(3, false, 1).unwrap_err().to_string();
    assert!(error.contains("the training files are not those of the checkpoint: found 2 file(s)"), "{error}");
    assert_eq!(train(3, true, 1).unwrap().report.began, 2);
    // The checkpoint now has the new files. Other workers may read other files.
    assert_eq!(train(4, false, 1).unwrap().report.began, 3);
    assert_eq!(train(5, false, 2).unwrap().report.began, 4);
}

/// Waits until a worker has ended, and returns the most memory that it had, in bytes.
fn peak_memory(worker: &mut crate::harness::Program) -> u64 {
    let mut most = 0;
    while worker.is_running() {
        let status = fs::read_to_string(format!("/proc/{}/status", worker.id())).unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = peak.and_then(|peak| peak.trim().trim_end_matches(" kB").parse::<u64>().ok());
        most = most.max(kilobytes.unwrap_or(0) * 1024);
        std::thread::yield_now();
    }
    most
}

/// The same job holds the examples in memory, or streams them.
#[test]
fn streaming_needs_little_memory() {
    const EXAMPLES: usize = 150_000;
    const PIXELS: usize = 1600;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("large.tfrecord.gz");
    let mut writer = TfRecordWriter::plain(GzEncoder::new(Vec::new(), Compression::fast()));
    for index in 0..EXAMPLES / 50 {
        let image = vec![(index % 10) as u8; PIXELS];
        let example = Example::new().bytes("image", image).ints("label", [index as i64 % 10]);
        writer.write_example(&example).unwrap();
    }
    let packed = writer.finish().unwrap().finish().unwrap();
    fs::write(&path, packed.repeat(50)).unwrap();
    let features = vec![
        FeatureSpec::new("image", "features", FeatureKind::Pixels, [PIXELS]),
        FeatureSpec::new("label", "labels", FeatureKind::Int64, []),
    ];
    let records =
        |path| DatasetSpec::TfRecord(TfRecordSpec { files: vec![path], features: features.clone() });
    let small = dir.path().join("small.tfrecord");
    let mut writer = TfRecordWriter::create(&small).unwrap();
    let example = Example::new().bytes("image", vec![1; PIXELS]).ints("label", [1]);
    writer.write_example(&example).unwrap();
    writer.finish().unwrap();

    let peak = |train: &Path, stream| {
        let input = InputSpec {
            shuffle: ShuffleSpec::Buffer(1000),
            stream,
            ..InputSpec::new(records(train.to_owned()), records(small.clone()))
        };
        let job = JobSpec { batch_size: 8, ..JobSpec::new(regression(&[PIXELS]), input, 50) };
        let cluster = crate::harness::Cluster::new(1, 1, 50);
        fs::write(cluster.job.path(), job.to_json()).unwrap();
        let mut others = [TaskId::CHIEF, TaskId::ps(0)].map(|task| cluster.start(task));
        let peak = peak_memory(&mut cluster.start(TaskId::worker(0)));
        for program in &mut others {
            program.wait().expect(0);
        }
        peak
    };
    let bytes = (EXAMPLES * PIXELS) as u64;
    assert!(peak(&path, StreamSpec::Never) > bytes, "the examples are held");
    // What a worker takes without any data to speak of is not what this test is about.
    let program = peak(&small, StreamSpec::Never);
    let streamed = peak(&path, StreamSpec::Always);
    assert!(
        program > 0 && streamed < program + bytes / 12,
        "{streamed} of {bytes} bytes, without data {program}"
    );
}
