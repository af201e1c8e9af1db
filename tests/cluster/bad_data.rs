//! Tests with missing or broken data, and with data that make training diverge. The error names the file or
//! the variable, and the whole cluster ends.

use std::path::Path;

use pushpull_messages::id::TaskId;

use crate::harness::{Cluster, Ended, Job, Program, Report, TinyDigits, example, tool};

/// Runs a job on the tiny digits with `pushpull local`.
fn local(dir: &Path, digits: &TinyDigits) -> Ended {
    let job = Job::with(dir, 40, &["--data-dir", digits.dir().to_str().expect("a path in UTF-8")]);
    let mut command = tool();
    command.args(["local", "--threads=1", "--job"]).arg(job.path());
    Program::run(dir, "local", command.arg("--report").arg(dir.join("report.json")))
}

/// Damages a data set with `spoil` and runs a job on it. The job must fail, and its output must contain each
/// text in `expected`.
#[track_caller]
fn spoiled(spoil: impl FnOnce(&TinyDigits), expected: &[&str]) -> Ended {
    let dir = tempfile::tempdir().unwrap();
    let digits = TinyDigits::write(dir.path());
    spoil(&digits);
    let mut ended = local(dir.path(), &digits).expect_failure();
    for word in expected {
        ended = ended.says(word);
    }
    assert!(!dir.path().join("report.json").exists());
    ended
}

#[test]
fn whole_files_train() {
    let dir = tempfile::tempdir().unwrap();
    let digits = TinyDigits::write(dir.path());
    local(dir.path(), &digits).expect(0);
    Report::read(&dir.path().join("report.json")).holds(40, 1, 2);
    let path = dir.path().join("embedded.json");
    let mut command = example();
    command
        .args(["--epochs=2", "--batch-size=16", "--data-dir"])
        .arg(digits.dir())
        .arg("--report")
        .arg(&path);
    Program::run(dir.path(), "example", &mut command).expect(0);
    Report::read(&path).holds(2 * TinyDigits::TRAIN as u64 / 16, 1, 2);
}

#[test]
fn a_missing_file_is_named() {
    for name in TinyDigits::FILES {
        spoiled(|digits| digits.remove(name), &[name, "expected one of them"]);
    }
}

#[test]
fn a_truncated_file_is_named() {
    for name in TinyDigits::FILES {
        spoiled(
            |digits| digits.spoil(name, |bytes| bytes.truncate(bytes.len() - 7)),
            &[name, "ends too early"],
        );
        spoiled(|digits| digits.spoil(name, |bytes| bytes.truncate(3)), &[name, "ends too early"]);
    }
}

#[test]
fn a_file_of_another_kind_is_named() {
    for name in TinyDigits::FILES {
        let text = |bytes: &mut Vec<u8>| bytes[..4].copy_from_slice(b"text");
        spoiled(|digits| digits.spoil(name, text), &[name, "0x74657874", "expected"]);
    }
    // The file of labels takes the place of the file of images.
    let [images, labels, ..] = TinyDigits::FILES;
    let swap = |digits: &TinyDigits| {
        std::fs::copy(digits.file(labels), digits.file(images)).expect("a copy");
    };
    spoiled(swap, &[images, "0x00000801", "0x00000803"]);
}

#[test]
fn labels_that_do_not_fit_the_images_are_named() {
    let [images, labels, ..] = TinyDigits::FILES;
    let fewer = |bytes: &mut Vec<u8>| {
        bytes.truncate(8 + 300);
        bytes[4..8].copy_from_slice(&300u32.to_be_bytes());
    };
    spoiled(|digits| digits.spoil(labels, fewer), &[images, labels, "320", "300"]);
}

#[test]
fn a_label_beyond_the_classes_is_named() {
    let [_, labels, ..] = TinyDigits::FILES;
    spoiled(|digits| digits.spoil(labels, |bytes| bytes[8 + 5] = 77), &["label 77"]);
}

#[test]
fn a_spoiled_test_set_is_noticed_before_the_training() {
    // The error must come before the training, and not after hours of it.
    let [_, _, images, labels] = TinyDigits::FILES;
    for name in [images, labels] {
        spoiled(|digits| digits.remove(name), &[name]).does_not_say("finished after");
        spoiled(|digits| digits.spoil(name, |bytes| bytes.truncate(bytes.len() - 7)), &[name])
            .does_not_say("finished after");
    }
}

#[test]
fn data_that_one_worker_lacks_end_the_whole_cluster() {
    let cluster = Cluster::new(2, 2, 100);
    let digits = TinyDigits::write(cluster.dir());
    cluster.job.edit(|job| {
        let idx =
            |images: &str, labels: &str| serde_json::json!({"idx": {"images": images, "labels": labels}});
        let [images, labels, test_images, test_labels] = TinyDigits::FILES;
        job["input"]["train"] = idx(images, labels);
        job["input"]["test"] = idx(test_images, test_labels);
    });
    let has = format!("--data-dir={}", digits.dir().display());
    let mut chief = cluster.start(TaskId::CHIEF);
    let ps = [cluster.start(TaskId::ps(0)), cluster.start(TaskId::ps(1))];
    let first = cluster.start_with(TaskId::worker(0), &[&has]);
    // The first worker must register before the second one fails: after the failure it would find no chief.
    chief.wait_for("worker registered worker=worker/0");
    let second = cluster.start_with(TaskId::worker(1), &["--data-dir=/nowhere"]);
    for mut program in [chief, first, second].into_iter().chain(ps) {
        let ended = program.wait().expect_failure();
        assert!(ended.last_line().contains("/nowhere/train-images"), "{}", ended.err);
    }
}

#[test]
fn a_gradient_that_is_not_finite_ends_the_whole_cluster() {
    let cluster = Cluster::with(1, 2, 2, |dir| {
        Job::with(dir, 1000, &["--learning-rate=1e20", "--partitioner=fixed:2"])
    });
    let mut programs = cluster.start_all();
    for program in &mut programs {
        program.wait().expect_failure().says("the gradient of variable '").says("is not finite");
    }
}

#[test]
fn a_gradient_that_is_not_finite_ends_an_embedded_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("report.json");
    let mut command = example();
    command.args(["--learning-rate=1e20", "--steps=1000", "--report"]).arg(&path);
    let ended = Program::run(dir.path(), "example", &mut command).expect_failure();
    ended.says("the gradient of variable '").says("is not finite");
    assert!(!path.exists());
}
