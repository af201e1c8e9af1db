//! Tests with a chief that is killed and started again while its job goes on, twice in each phase of the job.
//! Counts, bits, report and evaluation are those of a job that nothing has disturbed, and its last step is
//! saved.

use std::fs;
use std::path::PathBuf;

use pushpull_messages::id::TaskId;
use rustix::process::Signal;
use serde_json::json;

use crate::checkpoints;
use crate::harness::{Cluster, ENDLESS, Endpoint, Job, PATIENCE, Report, Running, wait_until};

const CHIEF: TaskId = TaskId::CHIEF;
/// With a constant learning rate, a job that is stopped early has the bits of one that ends there.
const FLAGS: [&str; 3] = ["--sync=sync", "--deterministic", "--schedule=constant"];
/// The last step of the jobs whose chief is killed before or after their training.
const LAST_STEP: u64 = 150;
/// The number of test examples of a job that evaluates slowly.
const TEST_EXAMPLES: u64 = 10_000;

/// Returns a cluster of two ps tasks and two workers that waits for its chief.
fn cluster(steps: u64) -> Cluster {
    let mut cluster = Cluster::with(1, 2, 2, |dir| Job::with(dir, steps, &FLAGS));
    cluster.chief_lost_after_s = 60;
    cluster
}

/// Returns the same cluster, with a job that saves its first and its last step.
fn saving(steps: u64) -> Cluster {
    let mut cluster = cluster(steps);
    let saved = checkpoints::directory(cluster.dir());
    cluster.chief_flags = vec![format!("--checkpoint-dir={}", saved.display())];
    cluster
}

/// Makes the evaluation of a job last so long on a slowed worker that a test can stop the worker in it.
fn evaluating_slowly(cluster: Cluster) -> Cluster {
    cluster.job.edit(|job| job["input"]["test"]["digits"]["examples"] = json!(TEST_EXAMPLES));
    cluster
}

/// A directory of checkpoints that fails while a file is in its place.
struct Store {
    place: PathBuf,
    aside: PathBuf,
}

impl Store {
    fn of(cluster: &Cluster) -> Self {
        let place = checkpoints::directory(cluster.dir());
        Self { aside: place.with_extension("aside"), place }
    }

    fn fail(&self) {
        fs::rename(&self.place, &self.aside).expect("a directory of checkpoints");
        fs::write(&self.place, "").expect("a place for a file");
    }

    fn work_again(&self) {
        fs::remove_file(&self.place).expect("the store fails");
        fs::rename(&self.aside, &self.place).expect("a directory of checkpoints");
    }
}

impl Running {
    /// Starts the chief again, which was killed. Returns when it continues the job.
    #[track_caller]
    fn chief_again(&mut self) {
        self.chief = self.cluster.start(CHIEF);
        self.chief.wait_for("continuing the job of an earlier run of the chief");
    }

    /// Starts a cluster, and stops worker 0 while it evaluates the trained job. The last step is saved.
    pub(crate) fn evaluating() -> Self {
        let mut running = Self::of(evaluating_slowly(saving(LAST_STEP)), &[]);
        let slowed = running.slowed(&[0]);
        let endpoint = Endpoint::of(&mut running.chief);
        let evaluating = || endpoint.metrics().count("pushpull_job_phase", &[("phase", "evaluating")]) == 1;
        wait_until("an evaluation", PATIENCE, || evaluating().then_some(()));
        drop(slowed);
        running.workers[0].signal(Signal::STOP);
        running.chief.wait_for(&format!("saved step-{LAST_STEP}-"));
        assert!(evaluating(), "the evaluation took too little time");
        running
    }

    /// Checks that a job that was killed in its evaluation ended as one that nothing disturbs.
    pub(crate) fn evaluated_well(&self, report: &Report) {
        self.ended_as(report, evaluating_slowly(cluster(LAST_STEP)));
    }

    /// Checks that a finished job has the bits and the evaluation of the job `quiet`, which nothing disturbs,
    /// and that its last step is saved.
    #[track_caller]
    fn ended_as(&self, report: &Report, quiet: Cluster) {
        let saved = checkpoints::steps(&checkpoints::directory(self.cluster.dir()));
        assert_eq!(saved.last(), Some(&report.count("updates_applied")));
        let found = |report: &Report| (report.variables_crc32c(), report.number("test_loss"));
        assert_eq!(found(report), found(&Running::of(quiet, &[]).end_well_without(&[])));
    }
}

#[test]
fn a_chief_may_die_twice_before_the_job_begins() {
    let mut running = Running::without_last_worker(saving(LAST_STEP));
    running.workers[0].wait_for("ready: model");
    for _ in 0..2 {
        running.chief.kill();
        running.chief_again();
        running.chief.wait_for("worker registered");
    }
    running.start_missing();
    let report = running.end_well_without(&[]);
    running.ended_as(&report, cluster(LAST_STEP));
}

#[test]
fn a_job_goes_on_when_its_chief_is_killed_twice() {
    let mut cluster = saving(ENDLESS);
    cluster.chief_flags.push("--save-steps=50".into());
    let mut running = Running::of(cluster, &[]);
    running.wait_for_version(20);
    // The ps tasks refuse the new run of the chief at first. Until then, little is trained.
    let slowed = running.slowed(&[0, 1]);
    for _ in 0..2 {
        running.chief.kill();
        running.wait_for_more(2);
        running.chief_again();
        running.chief.wait_for("worker rejoined");
        running.wait_for_more(2);
    }
    drop(slowed);
    let report = running.stop_well_without(&[]);
    running.ended_as(&report, self::cluster(report.count("updates_applied")));
}

#[test]
fn a_chief_may_die_twice_while_the_job_stops() {
    let mut running = Running::of(saving(ENDLESS), &[]);
    running.wait_for_version(100);
    // The chief waits for this task, so no shard hears of the stop.
    running.ps[1].signal(Signal::STOP);
    running.cluster.stop(&mut running.chief);
    running.chief.wait_for("stopping before the last step");
    running.chief.kill();
    running.ps[1].signal(Signal::CONT);
    let slowed = running.slowed(&[0, 1]);
    running.chief_again();
    drop(slowed);
    running.wait_for_more(2);
    // All shards hear of the stop, and the workers do not reach its step.
    running.workers.iter_mut().for_each(|worker| worker.signal(Signal::STOP));
    running.cluster.stop(&mut running.chief);
    running.chief.wait_for("shards agreed on the last step");
    running.chief.kill();
    running.chief_again();
    running.workers.iter_mut().for_each(|worker| worker.signal(Signal::CONT));
    let report = running.end_well_without(&[]);
    assert!(report.text("stopped").contains("had begun to stop before"), "{}", report.text("stopped"));
    running.ended_as(&report, cluster(report.count("updates_applied")));
}

#[test]
fn a_chief_may_die_twice_while_a_worker_evaluates() {
    let mut running = Running::evaluating();
    for _ in 0..2 {
        running.chief.kill();
        running.chief_again();
        running.chief.wait_for("worker rejoined worker=worker/1");
    }
    running.workers[0].signal(Signal::CONT);
    let report = running.end_well_without(&[]);
    running.evaluated_well(&report);
}

#[test]
fn a_chief_may_die_twice_in_the_last_save() {
    let mut running = Running::without_last_worker(saving(LAST_STEP));
    let store = Store::of(&running.cluster);
    running.chief.wait_for("saved step-0-");
    store.fail();
    running.start_missing();
    running.chief.wait_for("saving the last step failed");
    running.chief.kill();
    store.work_again();
    // Without this worker's evaluation, the job does not end before the store fails again.
    running.workers[0].signal(Signal::STOP);
    running.chief_again();
    running.chief.wait_for("worker rejoined worker=worker/1");
    store.fail();
    running.workers[0].signal(Signal::CONT);
    running.chief.wait_for("saving the last step failed");
    running.chief.kill();
    store.work_again();
    running.chief_again();
    let report = running.end_well_without(&[]);
    running.ended_as(&report, cluster(LAST_STEP));
}

#[test]
fn a_chief_of_another_job_is_refused() {
    let mut running = Running::of(cluster(ENDLESS), &[]);
    running.wait_for_version(20);
    let slowed = running.slowed(&[0, 1]);
    running.chief.kill();
    running.cluster.job.edit(|job| job["seed"] = json!(7));
    let ended = running.cluster.start(CHIEF).wait();
    ended.expect_failure().says("serves another job than this chief's");
    drop(slowed);
    running.wait_for_more(20);
    running.kill_all();
}
