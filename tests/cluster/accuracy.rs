//! Tests with the real MNIST data: the example reaches an accuracy of 97 %.

use std::path::Path;
use std::process::Command;

use crate::harness::{Program, Report, mnist, mnist_dir, tool};

const ACCURACY_MIN: f64 = 0.97;
/// The number of steps in 3 epochs of 60000 examples, in batches of 64.
const STEPS: u64 = 2813;

#[track_caller]
fn trains_well(dir: &Path, command: &mut Command) {
    let path = dir.join("report.json");
    Program::run(dir, "mnist", command.arg("--report").arg(&path)).expect(0);
    let report = Report::read(&path);
    report.holds(STEPS, 1, 2);
    let accuracy = report.number("test_accuracy");
    println!("accuracy {accuracy:.4} after {:.1} s of training", report.number("seconds"));
    assert!(accuracy >= ACCURACY_MIN, "{accuracy}");
}

#[test]
fn three_epochs_of_mnist_in_one_process() {
    let Some(data) = mnist_dir() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut command = mnist();
    trains_well(dir.path(), command.args(["--epochs=3", "--workers=2", "--data-dir"]).arg(data));
}

#[test]
fn three_epochs_of_mnist_in_many_processes() {
    let Some(data) = mnist_dir() else { return };
    let dir = tempfile::tempdir().unwrap();
    let job = dir.path().join("job.json");
    let mut command = mnist();
    command.args(["--epochs=3", "--data-dir"]).arg(data).arg("--export-job").arg(&job);
    Program::run(dir.path(), "export", &mut command).expect(0);
    let mut command = tool();
    trains_well(dir.path(), command.args(["local", "--ps=1", "--workers=2", "--job"]).arg(job));
}
