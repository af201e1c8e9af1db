//! Tests with ps tasks that are killed and started again while the other tasks stay. The job rolls back to
//! its latest checkpoint, with exact counts and bits.

use pushpull_messages::id::TaskId;
use rustix::process::Signal;

use crate::harness::{Cluster, ENDLESS, Job, PATIENCE, Running, wait_until};

/// With a constant learning rate, a job that is stopped early has the bits of one that ends there.
const FLAGS: [&str; 3] = ["--sync=sync", "--deterministic", "--schedule=constant"];

/// Returns a cluster of two ps tasks and two workers that waits for tasks that are started again.
fn cluster(steps: u64, flags: &[&str]) -> Cluster {
    let mut cluster = Cluster::with(1, 2, 2, |dir| Job::with(dir, steps, flags));
    cluster.chief_lost_after_s = 60;
    cluster
}

/// Starts a cluster that saves checkpoints and waits this long for a lost ps task. Returns when it has saved
/// a checkpoint.
fn saving(flags: &[&str], ps_lost_after_s: u32) -> Running {
    let mut cluster = cluster(ENDLESS, flags);
    let saved = cluster.dir().join("checkpoints");
    let to = format!("--checkpoint-dir={}", saved.display());
    cluster.chief_flags = vec![to, "--save-steps=50".into(), format!("--ps-lost-after-s={ps_lost_after_s}")];
    let running = Running::of(cluster, &["--lost-after-s=3"]);
    // A step is left out while the save before it takes long.
    let later = |line: &str| line.split("saved step-").skip(1).any(|name| !name.starts_with("0-"));
    wait_until("a checkpoint after step 0", PATIENCE, || later(&running.chief.err()).then_some(()));
    running
}

impl Running {
    /// Kills ps tasks and starts them again. Waits until the job trains again.
    fn lose_ps(&mut self, lost: &[usize]) {
        lost.iter().for_each(|&ps| self.ps[ps].kill());
        for &ps in lost {
            self.ps[ps] = self.cluster.start(TaskId::ps(ps as u32));
        }
        self.chief.wait_for("rolling the job back to its latest checkpoint");
        self.wait_for_version(1);
        self.wait_for_more(60);
    }

    /// Stops the job, and checks that it has the bits of one that nothing has disturbed.
    fn ends_as_if_undisturbed(&mut self) {
        let report = self.stop_well_without(&[]);
        let quiet = cluster(report.count("updates_applied"), &FLAGS);
        quiet.start_all().into_iter().for_each(|mut program| drop(program.wait().expect(0)));
        assert_eq!(report.variables_crc32c(), quiet.finished().variables_crc32c());
        assert!(report.count("rollbacks") > 0);
    }
}

#[test]
fn a_job_rolls_back_when_its_ps_are_killed() {
    let mut running = saving(&FLAGS, 60);
    running.lose_ps(&[1]);
    running.lose_ps(&[0, 1]);
    running.ends_as_if_undisturbed();
}

#[test]
fn a_job_rolls_back_when_chief_and_ps_are_killed() {
    let mut running = saving(&FLAGS, 60);
    running.chief.kill();
    running.ps[0].kill();
    running.ps[0] = running.cluster.start(TaskId::ps(0));
    running.chief = running.cluster.start(TaskId::CHIEF);
    running.chief.wait_for("rolling the job back to its latest checkpoint");
    running.wait_for_more(20);
    running.ends_as_if_undisturbed();
}

#[test]
fn a_deterministic_job_rolls_back_if_its_ps_stood_still() {
    let mut running = saving(&FLAGS, 60);
    running.ps[0].signal(Signal::STOP);
    running.chief.wait_for("lost a ps task; waiting for it to come back");
    running.ps[0].signal(Signal::CONT);
    running.chief.wait_for("rolling the job back to its latest checkpoint");
    running.wait_for_version(1);
    running.wait_for_more(60);
    running.ends_as_if_undisturbed();
}

#[test]
fn a_trained_job_rolls_back_when_its_ps_is_killed() {
    let mut running = Running::evaluating();
    running.ps[1].kill();
    running.ps[1] = running.cluster.start(TaskId::ps(1));
    running.chief.wait_for("rolling the job back to its latest checkpoint");
    running.workers[0].signal(Signal::CONT);
    // The last step was saved, so nothing is trained again.
    let report = running.end_well_without(&[]);
    assert_eq!((report.count("rollbacks"), report.count("updates_applied")), (1, 150));
    running.evaluated_well(&report);
}

#[test]
fn an_asynchronous_job_rolls_back_with_exact_counts() {
    let mut running = saving(&["--sync=async"], 60);
    running.lose_ps(&[0]);
    // The harness checks the counts of the report.
    running.stop_well_without(&[]);
}

#[test]
fn a_job_that_shall_not_wait_ends_without_its_ps() {
    let mut running = saving(&FLAGS, 1);
    running.ps[0].kill();
    running.chief.wait().expect_failure().says("lost ps/0 and its variables");
    running.kill_all();
}
