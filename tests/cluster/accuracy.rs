//! Tests that the examples learn as their headers say, on real data where it exists. If the result in a
//! header takes minutes, its test trains for a few seconds with one worker, so that the result depends on the
//! seed alone.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::{Program, Report, data_dir, example_called, mnist, mnist_dir, tool};

/// Trains on MNIST with one ps and two workers, in this number of steps.
#[track_caller]
fn trains_well(dir: &Path, command: &mut Command, steps: u64, accuracy_min: f64) {
    let path = dir.join("report.json");
    Program::run(dir, "mnist", command.arg("--report").arg(&path)).expect(0);
    let report = Report::read(&path);
    report.holds(steps, 1, 2);
    let accuracy = report.number("test_accuracy");
    println!("accuracy {accuracy:.4} after {:.1} s of training", report.number("seconds"));
    assert!(accuracy >= accuracy_min, "{accuracy}");
}

#[test]
fn three_epochs_of_mnist_in_one_process() {
    let Some(data) = mnist_dir() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut command = mnist();
    command.args(["--epochs=3", "--workers=2", "--data-dir"]).arg(data);
    // 3 epochs of 60000 examples in batches of 64 make 2812.5 steps.
    trains_well(dir.path(), &mut command, 2813, 0.97);
}

#[test]
fn an_epoch_of_mnist_in_many_processes() {
    let Some(data) = mnist_dir() else { return };
    let dir = tempfile::tempdir().unwrap();
    let job = dir.path().join("job.json");
    let mut command = mnist();
    command.args(["--epochs=1", "--data-dir"]).arg(data).arg("--export-job").arg(&job);
    Program::run(dir.path(), "export", &mut command).expect(0);
    let mut command = tool();
    command.args(["local", "--ps=1", "--workers=2", "--job"]).arg(job);
    // Four seeds had 96.2 to 96.5 %.
    trains_well(dir.path(), &mut command, 938, 0.955);
}

#[test]
fn an_epoch_of_mnist_in_a_pipeline() {
    let Some(data) = mnist_dir() else { return };
    let dir = tempfile::tempdir().unwrap();
    let job = dir.path().join("job.json");
    let mut command = mnist();
    command
        .args(["--epochs=1", "--pipeline=2", "--learning-rate=0.1", "--data-dir"])
        .arg(data)
        .arg("--export-job")
        .arg(&job);
    Program::run(dir.path(), "export", &mut command).expect(0);
    let mut command = tool();
    command.args(["local", "--ps=1", "--workers=2", "--job"]).arg(job);
    // Stale gradients allow only a lower rate: at the default of 0.3 the result depends on the load of the
    // machine, and 17 runs had 93.2 to 95.7 %. At 0.1, 16 runs had 94.4 to 94.8 %, half of them under load.
    trains_well(dir.path(), &mut command, 938, 0.94);
}

/// Trains an example in one process, and returns its report.
#[track_caller]
fn trained(name: &str, data: Option<&Path>, flags: &[&str]) -> Report {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("report.json");
    let mut command = example_called(name);
    if let Some(data) = data {
        command.arg("--data-dir").arg(data);
    }
    Program::run(dir.path(), name, command.args(flags).arg("--report").arg(&path)).expect(0);
    Report::read(&path)
}

#[test]
fn the_plane_fits_up_to_the_noise() {
    for flags in [&[] as &[&str], &["--pipeline=2"]] {
        let loss = trained("linear_regression", None, flags).number("test_loss");
        // The noise in the labels has a mean square of about 0.01. The loss with the default seed is 0.0102.
        assert!((0.0098..0.0107).contains(&loss), "{loss} with {flags:?}");
    }
}

#[test]
fn hooks_end_the_job_when_the_loss_is_low() {
    let report = trained("hooks", None, &[]);
    assert!(report.text("stopped").contains("is below the bound 0.02"), "{}", report.text("stopped"));
    assert!(report.count("updates_applied") < report.count("steps") / 10);
    assert!(report.number("test_loss") < 0.02, "{}", report.number("test_loss"));
}

#[test]
fn the_convolutional_network_learns_digits() {
    let Some(data) = mnist_dir() else { return };
    let report = trained("mnist", Some(&data), &["--model=cnn", "--workers=1", "--steps=120"]);
    // Five seeds had 94.0 to 94.9 %. The MLP has 91.4 % after the same number of steps.
    assert!(report.metric("accuracy") >= 0.925, "{}", report.metric("accuracy"));
}

#[test]
fn the_residual_network_learns_colour_images() {
    let Some(data) = data_dir("cifar10", "train.bin") else { return };
    let report = trained("cifar10", Some(&data), &["--workers=1", "--steps=60"]);
    // Five seeds had 32.8 to 37.0 %. The most frequent class has 11.2 %.
    assert!(report.metric("accuracy") >= 0.3, "{}", report.metric("accuracy"));
}

#[test]
fn the_transformer_learns_more_than_frequencies() {
    let Some(data) = data_dir("tinyshakespeare", "input.txt") else { return };
    let flags = ["--workers=1", "--steps=100", "--batch-size=16", "--learning-rate=0.003"];
    let loss = trained("char_lm", Some(&data), &flags).number("test_loss");
    // Four seeds had 2.59 to 2.61. The frequencies of the characters alone give 3.3 nats.
    assert!(loss < 2.75, "{loss}");
}

#[test]
fn adult_ranks_incomes_as_its_header_says() {
    let Some(data) = data_dir("adult", "adult.test") else { return };
    let report = trained("adult", Some(&data), &[]);
    let (auc, accuracy) = (report.metric("auc"), report.metric("accuracy"));
    println!("area {auc:.4}, accuracy {accuracy:.4}");
    // Runs with other seeds had areas of 0.9115 to 0.9118 and accuracies of 85.7 to 85.9 %.
    assert!(auc >= 0.905 && accuracy >= 0.85, "{auc} {accuracy}");
}

#[test]
fn adult_accepts_unknown_answers() {
    const ROWS: &str = "\
39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, United-States, <=50K
54, ?, 180211, Some-college, 10, Married-civ-spouse, ?, Husband, Asian-Pac-Islander, Male, 0, 0, 60, South, >50K
32, Private, 205019, Assoc-acdm, 12, Never-married, Sales, Not-in-family, Black, Male, 0, 0, 50, ?, <=50K
";
    let data = tempfile::tempdir().unwrap();
    fs::write(data.path().join("adult.data"), format!("{ROWS}\n")).unwrap();
    let test = ROWS.replace("50K\n", "50K.\n");
    fs::write(data.path().join("adult.test"), format!("|1x3 Cross validator\n{test}\n")).unwrap();
    let flags = ["--steps=200", "--batch-size=3", "--workers=1", "--learning-rate=0.01"];
    let report = trained("adult", Some(data.path()), &flags);
    assert_eq!(
        (report.metric("accuracy"), report.metric("auc")),
        (1.0, 1.0),
        "three rows are learnt by heart"
    );
}

#[test]
fn adult_without_its_files_says_where_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let ended = Program::run(dir.path(), "adult", &mut example_called("adult")).expect(2);
    let told = ended.last_line();
    assert!(told.contains("--data-dir") && told.contains("archive.ics.uci.edu"), "{told}");
    assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
}
