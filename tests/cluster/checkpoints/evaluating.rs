//! Tests of the evaluator task, which evaluates each new checkpoint and keeps the best one, and of jobs that
//! end because the evaluations do not improve.

use pushpull_messages::id::JobName;
use rustix::process::Signal;

use crate::harness::{Cluster, Job, Program, Running, example, role};

use super::{directory, steps};

#[test]
fn every_checkpoint_is_evaluated_and_the_best_is_kept() {
    const STEPS: u64 = 200;
    let mut cluster = Cluster::with(1, 1, 2, |dir| Job::new(dir, STEPS));
    let saved = directory(cluster.dir());
    cluster.chief_flags = vec![
        format!("--checkpoint-dir={}", saved.display()),
        "--save-steps=100".into(),
        "--keep-checkpoints=2".into(),
    ];
    let mut command = role(JobName::Evaluator);
    command.arg(format!("--checkpoint-dir={}", saved.display())).arg("--threads=1");
    let mut evaluator = Program::start(cluster.dir(), "evaluator", &mut command);
    let mut running = Running::of(cluster, &[]);
    let report = running.end_well_without(&[]);
    let ended = evaluator.wait().expect(0);
    // The evaluator and the chief evaluate the same variables, so the accuracy must be the same.
    let expected = format!("{:.4}", report.number("test_accuracy"));
    assert!(ended.err.contains(&format!("step {STEPS}")) && ended.err.contains(&expected), "{}", ended.err);
    assert!(!steps(&saved.join("best")).is_empty(), "the best is a checkpoint like any other");
    let records = std::fs::read_dir(saved.join("eval")).expect("it has written what it found").count();
    assert!(records >= 1);
}

#[test]
fn an_evaluator_takes_its_task_from_tf_config() {
    let mut cluster = Cluster::with(1, 1, 1, |dir| Job::new(dir, 50));
    let saved = directory(cluster.dir());
    cluster.chief_flags = vec![format!("--checkpoint-dir={}", saved.display())];
    // As with Kubeflow, the cluster's addresses do not include the evaluator.
    let config = cluster.spec.to_tf_config(pushpull_messages::id::TaskId::new(JobName::Evaluator, 0));
    let mut command = example();
    command.env("TF_CONFIG", config).arg(format!("--checkpoint-dir={}", saved.display())).arg("--threads=1");
    let mut evaluator = Program::start(cluster.dir(), "evaluator", &mut command);
    let mut running = Running::of(cluster, &[]);
    running.end_well_without(&[]);
    evaluator.wait().expect(0).says("step 50");
}

#[test]
fn an_evaluator_that_is_told_to_stop_ends_well() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut command = role(JobName::Evaluator);
    command.arg(format!("--checkpoint-dir={}", directory(dir.path()).display()));
    let mut evaluator = Program::start(dir.path(), "evaluator", &mut command);
    evaluator.wait_for("waiting for");
    evaluator.signal(Signal::TERM);
    evaluator.wait().expect(0);
}

#[test]
fn a_job_that_gets_no_better_ends_early_and_well() {
    let mut cluster = Cluster::with(1, 1, 1, |dir| {
        // The learning rate is so small that no evaluation is better than the first one.
        Job::with(dir, 1_000_000, &["--learning-rate=1e-30", "--schedule=constant"])
    });
    let saved = directory(cluster.dir());
    cluster.chief_flags = vec![
        format!("--checkpoint-dir={}", saved.display()),
        "--save-steps=20".into(),
        "--early-stopping=accuracy:2".into(),
    ];
    let mut command = role(JobName::Evaluator);
    command.arg(format!("--checkpoint-dir={}", saved.display())).args(["--threads=1", "--poll-every-ms=100"]);
    let mut evaluator = Program::start(cluster.dir(), "evaluator", &mut command);
    let mut running = Running::of(cluster, &[]);
    for program in [&mut running.chief].into_iter().chain(&mut running.ps).chain(&mut running.workers) {
        program.wait().expect(0);
    }
    let report = crate::harness::Report::read(&running.cluster.report_path());
    assert!(report.text("stopped").contains("accuracy"), "{}", report.text("stopped"));
    let step = report.count("updates_applied");
    assert!(step < 1_000_000);
    assert_eq!(steps(&saved).last(), Some(&step), "what it ended with is saved");
    evaluator.signal(Signal::TERM);
    evaluator.wait().expect(0);
}

#[test]
fn worker_0_evaluates_and_the_job_ends_early() {
    let mut cluster = Cluster::with(1, 2, 1, |dir| {
        let slow = ["--learning-rate=1e-30", "--schedule=constant", "--eval-every=20"];
        Job::with(dir, 1_000_000, &slow)
    });
    cluster.chief_flags = vec!["--early-stopping=accuracy:2".into()];
    let mut running = Running::of(cluster, &[]);
    let chief = running.chief.wait().expect(0);
    for program in running.ps.iter_mut().chain(&mut running.workers) {
        program.wait().expect(0);
    }
    let report = crate::harness::Report::read(&running.cluster.report_path());
    assert!(report.text("stopped").contains("accuracy"), "{}", report.text("stopped"));
    assert!(report.count("updates_applied") < 1_000_000);
    let table = chief.err.lines().filter(|line| line.contains("val accuracy"));
    assert_eq!(table.count(), 1, "one header: {}", chief.err);
}
