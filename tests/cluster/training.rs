//! Tests of the results of training: the report, every shard's counts, and the bits of the variables.

use tempfile::TempDir;

use crate::harness::{Job, Program, Report, TinyDigits, example, tool};

fn dir() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// Trains in one process on the tiny data set, with small batches and these flags. Returns the report.
#[track_caller]
fn embedded(flags: &[&str]) -> Report {
    let dir = dir();
    let path = dir.path().join("report.json");
    let mut command = example();
    command.arg("--threads=1").arg(TinyDigits::write(dir.path()).flag());
    command.args(flags).arg("--report").arg(&path);
    if !flags.iter().any(|flag| flag.starts_with("--batch-size")) {
        command.arg("--batch-size=16");
    }
    Program::run(dir.path(), "example", &mut command).expect(0);
    Report::read(&path)
}

#[test]
fn an_embedded_run_ends_well_and_reports() {
    let dir = dir();
    let path = dir.path().join("report.json");
    let mut command = example();
    command.args(["--steps=300", "--batch-size=16", "--report"]).arg(&path);
    let ended = Program::run(dir.path(), "example", &mut command).expect(0);
    let report = Report::read(&path);
    report.holds(300, 1, 2);
    assert_eq!(report.shards().len(), 1);
    assert!(report.number("test_accuracy") > 0.8, "it learns");
    assert!(ended.out.contains("300 of 300 applied"), "{}", ended.out);
    let files: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(!files.iter().any(|file| file.to_string_lossy().contains("partial")), "{files:?}");
}

#[test]
fn every_shard_of_every_ps_counts_every_step() {
    let report = embedded(&[
        "--steps=200",
        "--ps=3",
        "--shards=2",
        "--workers=3",
        "--placement=greedy_load_balancing",
        "--partitioner=fixed:4",
    ]);
    report.holds(200, 3, 3);
    assert_eq!(report.shards().len(), 6);
}

#[test]
fn a_shard_that_owns_nothing_is_left_alone() {
    // There are six variables for eight shards.
    let report = embedded(&["--steps=50", "--ps=4", "--shards=2", "--workers=2"]);
    report.holds(50, 4, 2);
    assert_eq!(report.shards().len(), 6);
    assert!(report.shards().iter().all(|shard| shard["bytes"] != 0));
}

#[test]
fn convolutions_train_in_one_process() {
    let report = embedded(&["--model=cnn", "--steps=60", "--ps=2", "--optimizer=adam"]);
    report.holds(60, 2, 2);
    assert_eq!(report.text("model"), "cnn");
}

#[test]
fn steps_follow_from_epochs() {
    // 320 examples in batches of 48 make 6.7 steps.
    embedded(&["--epochs=1", "--batch-size=48"]).holds(7, 1, 2);
}

#[test]
fn one_worker_leaves_the_same_bits_wherever_the_variables_live() {
    for optimizer in ["sgd", "momentum", "adam", "ftrl"] {
        let train = |flags: &[&str]| {
            let usual = ["--steps=60", "--workers=1", "--seed=7", "--optimizer", optimizer];
            embedded(&[&usual[..], flags].concat()).variables_crc32c()
        };
        let expected = train(&[]);
        for placed in [
            &["--ps=3"][..],
            &["--ps=2", "--shards=2", "--placement=greedy_load_balancing", "--partitioner=fixed:3"],
            &["--ps=3", "--partitioner=max_slice_bytes:100000"],
            &["--ps=2", "--partitioner=min_max:4096"],
        ] {
            assert_eq!(train(placed), expected, "{optimizer} with {placed:?}");
        }
    }
}

#[test]
fn one_worker_leaves_the_same_bits_in_one_process_as_in_many() {
    let steps = 80;
    let usual = ["--seed=3", "--learning-rate=0.05"];
    for placed in [&[][..], &["--partitioner=fixed:3"]] {
        let dir = dir();
        let data = TinyDigits::write(dir.path()).flag();
        let job = Job::with(dir.path(), steps, &[&usual[..], placed, &[&data]].concat());
        let path = dir.path().join("report.json");
        let mut command = tool();
        command.args(["local", "--ps=2", "--workers=1", "--threads=1", "--job"]).arg(job.path());
        Program::run(dir.path(), "local", command.arg("--report").arg(&path)).expect(0);
        let processes = Report::read(&path);
        processes.holds(steps, 2, 1);
        let together = embedded(&[&usual[..], &["--steps=80", "--workers=1"]].concat());
        assert_eq!(processes.variables_crc32c(), together.variables_crc32c());
        assert_eq!(processes.number("test_loss"), together.number("test_loss"));
    }
}

#[test]
fn another_seed_leaves_other_bits() {
    let train = |seed: &str| embedded(&["--steps=20", "--workers=1", "--seed", seed]).variables_crc32c();
    assert_ne!(train("1"), train("2"));
}

#[test]
fn a_closed_pipe_costs_neither_report_nor_exit_status() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report.json");
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
    let status = example().args(["--steps=5", "--report"]).arg(&report).stdout(full).status().unwrap();
    assert!(status.success(), "{status}");
    assert!(report.exists());
}
