//! Tests with a chief that is killed and started again while its job goes on. Counts and bits stay exact.

use pushpull_messages::id::TaskId;
use serde_json::json;

use crate::harness::{Cluster, ENDLESS, Job, Running};

const CHIEF: TaskId = TaskId::CHIEF;
/// With a constant learning rate, a job that is stopped early has the bits of one that ends there.
const FLAGS: [&str; 3] = ["--sync=sync", "--deterministic", "--schedule=constant"];

/// Returns a cluster of two ps tasks and two workers that waits for its chief.
fn cluster(steps: u64) -> Cluster {
    let mut cluster = Cluster::with(1, 2, 2, |dir| Job::with(dir, steps, &FLAGS));
    cluster.chief_lost_after_s = 60;
    cluster
}

#[test]
fn a_job_goes_on_when_its_chief_is_killed_twice() {
    let mut cluster = cluster(ENDLESS);
    let saved = cluster.dir().join("checkpoints");
    cluster.chief_flags = vec![format!("--checkpoint-dir={}", saved.display()), "--save-steps=50".into()];
    let mut running = Running::of(cluster, &[]);
    running.wait_for_version(20);
    // The ps tasks refuse the new run of the chief for 10 s. Until then, little is trained.
    let slowed = running.slowed(&[0, 1]);
    for _ in 0..2 {
        running.chief.kill();
        running.wait_for_more(2);
        running.chief = running.cluster.start(CHIEF);
        running.chief.wait_for("continuing the job of an earlier run of the chief");
        running.chief.wait_for("worker rejoined");
        running.wait_for_more(2);
    }
    drop(slowed);
    let report = running.stop_well_without(&[]);
    assert!(running.chief.err().contains("saved step-"), "{}", running.chief.err());
    let steps = report.count("updates_applied");
    let quiet = self::cluster(steps);
    quiet.start_all().into_iter().for_each(|mut program| drop(program.wait().expect(0)));
    assert_eq!(report.variables_crc32c(), quiet.finished().variables_crc32c());
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
