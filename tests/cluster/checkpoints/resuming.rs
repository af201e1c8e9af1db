//! Tests in which all tasks are killed and started again with the same command. The job resumes, and makes
//! no update twice.

use crate::harness::{Program, Report, Running, example};

use super::{deterministic, saving, steps, undisturbed, verify, wait_for_save};

#[test]
fn a_killed_deterministic_job_resumes_bit_equal() {
    const STEPS: u64 = 400;
    let expected = undisturbed(deterministic(2, 2, STEPS, &[]));
    let mut running = Running::of(deterministic(2, 2, STEPS, &["--save-steps=10"]), &[]);
    let mut last = 0;
    for version in [60, 200] {
        running.wait_for_version(version);
        let seen = wait_for_save(&mut running.chief, version - 25);
        running.kill_all();
        let saved = steps(&super::directory(running.cluster.dir()));
        last = *saved.last().expect("it has saved");
        assert!(last >= seen && last % 10 == 0, "{saved:?}");
        assert!(saved.len() <= 5, "{saved:?}");
        running = running.all_again();
        running.chief.wait_for(&format!("restored step-{last}-"));
    }
    let report = running.end_well_without(&[]);
    assert_eq!(report.variables_crc32c(), expected);
    assert_eq!(report.count("began"), last);
    let directory = super::directory(running.cluster.dir());
    verify(&directory);
    assert_eq!(steps(&directory).last(), Some(&STEPS), "what it ended with is saved");
}

#[test]
fn every_policy_makes_exactly_the_requested_updates() {
    const STEPS: u64 = 600;
    let jobs = ["async", "bounded:1", "sync", "sync:1"].map(|mode| {
        let sync = format!("--sync={mode}");
        let cluster =
            saving(2, 2, STEPS, &[&sync, "--ema-decay=0.9", "--optimizer=momentum"], &["--save-steps=7"]);
        let mut running = Running::of(cluster, &[]);
        wait_for_save(&mut running.chief, 49);
        running.kill_all();
        (mode, running)
    });
    for (mode, running) in jobs {
        let mut running = running.all_again();
        running.chief.wait_for("restored step-");
        // This also checks the number of updates on every shard.
        let report = running.end_well_without(&[]);
        assert!(report.count("began") >= 49, "{mode}");
    }
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
    let start = |name: &str, flags: &[&str]| {
        let report = dir.path().join(format!("{name}.json"));
        let mut command = example();
        command.args(["--batch-size=16", "--steps=1500", "--sync=sync", "--deterministic", "--threads=1"]);
        command.args(flags).arg("--report").arg(&report);
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
