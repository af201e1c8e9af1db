//! Tests in which all tasks are killed and started again with the same command. The job resumes, and makes
//! no update twice.

use std::path::{Path, PathBuf};

use pushpull::data::{Dataset, load};
use pushpull::{DatasetSpec, Example, FeatureKind, FeatureSpec, TfRecordSpec, TfRecordWriter};
use serde_json::json;

use crate::harness::{Cluster, ENDLESS, Program, Report, Running, TinyDigits, example, under_each};

use super::{deterministic, ends_bit_equal, saving, steps, undisturbed, verify, wait_for_save};

#[test]
fn a_killed_deterministic_job_resumes_bit_equal() {
    let mut running = Running::of(deterministic(2, 2, ENDLESS, &["--save-steps=10"]), &[]);
    let mut last = 0;
    for _ in 0..2 {
        if last > 0 {
            running = running.all_again();
            running.chief.wait_for(&format!("restored step-{last}-"));
        }
        let version = last + 60;
        running.wait_for_version(version);
        let seen = wait_for_save(&mut running.chief, version - 25);
        running.kill_all();
        let saved = steps(&super::directory(running.cluster.dir()));
        last = *saved.last().expect("it has saved");
        assert!(last >= seen && last % 10 == 0, "{saved:?}");
        // Five are kept. Each kill may come after a save, and before the oldest one is removed.
        assert!(saved.len() <= 8, "{saved:?}");
    }
    let running = ends_bit_equal(running, last);
    let directory = super::directory(running.cluster.dir());
    verify(&directory);
    let saved = steps(&directory);
    let steps = running.cluster.job.steps;
    assert_eq!((saved.len(), saved.last()), (5, Some(&steps)), "what it ended with is saved");
}

/// Writes 500 digits to packed TFRecord files, and lets the job stream them, three files at a time.
fn stream(cluster: &Cluster) {
    let digits = load(&DatasetSpec::Digits { seed: 5, examples: 500 }, None).expect("digits");
    let mut reader = digits.reader().expect("a set in memory");
    let mut write = |path: PathBuf, examples: usize, rows: &mut pushpull::data::Rows| {
        rows.clear();
        assert_eq!(reader.read(examples, rows).expect("digits"), examples);
        let mut writer = TfRecordWriter::create(&path).expect("the test's directory can be written");
        for index in 0..examples {
            let row = rows.row(index);
            let pixels = row
                .f32("features")
                .expect("an image")
                .iter()
                .map(|pixel| (pixel * 255.0) as u8)
                .collect::<Vec<_>>();
            let label = i64::from(row.i32("labels").expect("a label")[0]);
            let example = Example::new().bytes("image", pixels).ints("label", [label]);
            writer.write_example(&example).expect("a record");
        }
        writer.finish().expect("a whole file");
        path
    };
    let mut rows = digits.rows().expect("columns");
    let dir: &Path = cluster.dir();
    let mut files = Vec::new();
    for (part, examples) in [60, 140, 90, 110, 100].into_iter().enumerate() {
        files.push(write(dir.join(format!("part-{part}.tfrecord.gz")), examples, &mut rows));
    }
    let features = vec![
        FeatureSpec::new("image", "features", FeatureKind::Pixels, [28, 28]),
        FeatureSpec::new("label", "labels", FeatureKind::Int64, []),
    ];
    let records = DatasetSpec::TfRecord(TfRecordSpec { files, features });
    cluster.job.edit(|job| {
        job["input"]["train"] = serde_json::to_value(&records).expect("JSON");
        job["input"]["test"] = job["input"]["train"].clone();
        job["input"]["shuffle"] = json!({"buffer": 64});
        job["input"]["stream"] = json!("always");
        job["input"]["interleave"] = json!(3);
        job["accumulate"] = json!(2);
    });
}

#[test]
fn a_killed_job_resumes_within_a_streamed_epoch() {
    const STEPS: u64 = 120;
    let cluster = |flags: &[&str]| {
        let cluster = deterministic(1, 2, STEPS, flags);
        stream(&cluster);
        cluster
    };
    let expected = undisturbed(cluster(&[]));
    // An epoch has 500 examples, a step 2 x 32: the job is killed within its second epoch or later.
    let mut running = Running::of(cluster(&["--save-steps=7"]), &[]);
    let seen = wait_for_save(&mut running.chief, 21);
    running.kill_all();
    let mut running = running.all_again();
    running.chief.wait_for("restored step-");
    let report = running.end_well_without(&[]);
    assert_eq!(report.variables_crc32c(), expected);
    assert!(report.count("began") >= seen);
}

#[test]
fn every_policy_makes_exactly_the_requested_updates() {
    const STEPS: u64 = 400;
    under_each(&["async", "bounded:1", "sync", "sync:1"], |mode| {
        let sync = format!("--sync={mode}");
        let cluster =
            saving(2, 2, STEPS, &[&sync, "--ema-decay=0.9", "--optimizer=momentum"], &["--save-steps=7"]);
        let mut running = Running::of(cluster, &[]);
        wait_for_save(&mut running.chief, 49);
        running.kill_all();
        let mut running = running.all_again();
        running.chief.wait_for("restored step-");
        // This also checks the number of updates on every shard.
        let report = running.end_well_without(&[]);
        assert!(report.count("began") >= 49, "{mode}");
    });
}

#[test]
fn a_job_that_has_ended_ends_again_at_once() {
    const STEPS: u64 = 30;
    let mut running = Running::of(deterministic(1, 2, STEPS, &[]), &[]);
    let first = running.end_well_without(&[]).variables_crc32c();
    let mut running = running.all_again();
    let report = running.end_well_without(&[]);
    assert_eq!((report.count("began"), report.variables_crc32c()), (STEPS, first));
}

#[test]
fn a_job_may_go_on_to_a_later_step_with_other_workers() {
    let mut running = Running::of(saving(1, 2, 40, &[], &[]), &[]);
    running.end_well_without(&[]);
    let directory = super::directory(running.cluster.dir());
    let mut longer = saving(2, 3, 90, &[], &[]);
    longer.chief_flags = vec![format!("--checkpoint-dir={}", directory.display())];
    let mut longer = Running::of(longer, &[]);
    assert_eq!(longer.end_well_without(&[]).count("began"), 40);
}

#[test]
fn an_embedded_run_that_was_killed_goes_on() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let data = TinyDigits::write(dir.path()).flag();
    let start = |name: &str, flags: &[&str]| {
        let report = dir.path().join(format!("{name}.json"));
        let mut command = example();
        command.args(["--batch-size=16", "--steps=1500", "--sync=sync", "--deterministic", "--threads=1"]);
        command.arg(&data).args(flags).arg("--report").arg(&report);
        (Program::start(dir.path(), name, &mut command), report)
    };
    let (mut whole, report) = start("whole", &[]);
    whole.wait().expect(0);
    let expected = Report::read(&report).variables_crc32c();
    let saves = format!("--checkpoint-dir={}", dir.path().join("checkpoints").display());
    let flags = [saves.as_str(), "--save-steps=20"];
    let (mut killed, _) = start("killed", &flags);
    wait_for_save(&mut killed, 60);
    killed.kill();
    let (mut again, report) = start("again", &flags);
    again.wait_for("restored step-");
    again.wait().expect(0);
    let report = Report::read(&report);
    assert_eq!(report.variables_crc32c(), expected);
    assert!(report.count("began") >= 60);
}
