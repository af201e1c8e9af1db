//! Tests of jobs that compress what workers push and pull, in one process and in many.

use std::path::Path;

use crate::harness::{Cluster, Job, Program, Report, Running, TinyDigits, example, tool};

/// Trains in one process on the tiny data set. Returns the report.
#[track_caller]
fn embedded(flags: &[&str]) -> Report {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("report.json");
    let mut command = example();
    command.args(["--threads=1", "--batch-size=16"]).arg(TinyDigits::write(dir.path()).flag());
    Program::run(dir.path(), "example", command.args(flags).arg("--report").arg(&path)).expect(0);
    Report::read(&path)
}

/// Trains a job file with `pushpull local`. Returns the report, and what the tasks have said.
#[track_caller]
fn local(dir: &Path, job: &Job) -> (Report, String) {
    let path = dir.join("report.json");
    let mut command = tool();
    command.args(["local", "--threads=1", "--ps=2", "--workers=2"]);
    command.arg("--job").arg(job.path()).arg("--report").arg(&path);
    let ended = Program::run(dir, "local", &mut command).expect(0);
    (Report::read(&path), ended.err)
}

#[test]
fn compressed_jobs_learn_in_many_processes() {
    for (compress, expected) in [
        ("--compress=int8", "int8"),
        ("--compress=gradients=top-k:0.05", "top-k:0.05"),
        ("--compress=*/kernel:gradients=bf16,values=fp16", "fp16"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let job = Job::with(dir.path(), 400, &[compress, "--partitioner=fixed:2"]);
        let text = std::fs::read_to_string(job.path()).unwrap();
        assert!(text.contains("\"compression\"") && text.contains(expected), "{text}");
        let (report, said) = local(dir.path(), &job);
        report.holds(400, 2, 2);
        let accuracy = report.number("test_accuracy");
        assert!(accuracy > 0.7, "{compress}: {accuracy}");
        assert!(said.contains("compressing what is pushed and pulled"), "{said}");
    }
}

#[test]
fn a_compressed_job_learns_over_tcp() {
    let cluster =
        Cluster::with(1, 2, 2, |dir| Job::with(dir, 400, &["--compress=int8", "--partitioner=fixed:3"]));
    let report = Running::of(cluster, &["--transport=tcp"]).end_well_without(&[]);
    report.holds(400, 2, 2);
    assert!(report.number("test_accuracy") > 0.7, "{}", report.number("test_accuracy"));
}

#[test]
fn every_mode_learns_with_compression() {
    for sync in ["--sync=async", "--sync=bounded:1", "--sync=sync", "--sync=sync:1", "--sync=sync:3"] {
        let flags = ["--steps=200", "--workers=2", "--learning-rate=0.05", "--ema-decay=0.9", sync];
        let compressed = embedded(&[&flags[..], &["--compress=gradients=top-k:0.1,values=int8"]].concat());
        compressed.holds(200, 1, 2);
        assert!(compressed.number("test_loss").is_finite(), "{sync}");
        let exact = embedded(&flags);
        let (compressed, exact) = (compressed.number("test_accuracy"), exact.number("test_accuracy"));
        assert!(compressed > exact - 0.2, "{sync}: {compressed} with compression, {exact} without");
    }
}

#[test]
fn two_deterministic_runs_with_compression_leave_the_same_bits() {
    let train = |compress: &str| {
        let usual = [
            "--steps=60",
            "--workers=3",
            "--ps=2",
            "--sync=sync",
            "--deterministic",
            "--partitioner=fixed:3",
        ];
        embedded(&[&usual[..], &[compress]].concat()).variables_crc32c()
    };
    for compress in ["--compress=int8", "--compress=gradients=top-k:0.1,values=bf16"] {
        assert_eq!(train(compress), train(compress), "{compress}");
    }
    assert_ne!(train("--compress=int8"), train("--compress=none"));
}

#[test]
fn several_devices_and_batches_learn_with_compression() {
    let flags = ["--steps=100", "--workers=1", "--devices=2", "--accumulate=2", "--compress=int8"];
    let report = embedded(&flags);
    report.holds(100, 1, 1);
    assert!(report.number("test_accuracy") > 0.7, "{}", report.number("test_accuracy"));
}

#[test]
fn a_compressed_job_continues_from_its_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let saved = dir.path().join("saved");
    let saved = format!("--checkpoint-dir={}", saved.display());
    let train =
        |steps: u64| embedded(&[&format!("--steps={steps}"), "--workers=2", "--compress=int8", &saved]);
    train(60).holds(60, 1, 2);
    let report = train(120);
    report.holds(120, 1, 2);
    assert_eq!(report.count("began"), 60);
    assert!(report.number("test_accuracy") > 0.5, "{}", report.number("test_accuracy"));
}
