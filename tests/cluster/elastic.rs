//! Tests of workers that the cluster does not list: they join a job that trains and leave it again, in every
//! way, with ps tasks and without. No count changes, and the examples are divided among those that are there.

use pushpull_messages::id::TaskId;
use rustix::process::Signal;

use crate::checkpoints;
use crate::harness::{Cluster, ENDLESS, Job, PATIENCE, Running, under_each, wait_until};

/// The largest number of workers. Two are in the cluster.
const MAX: &str = "--workers-max=4";

/// Starts a job with two listed workers.
fn start(ps: u32, flags: &[&str]) -> Running {
    Running::of(Cluster::with(1, ps, 2, |dir| Job::with(dir, ENDLESS, flags)), &[MAX])
}

/// Starts a worker that the cluster does not list, and waits until `members` workers are members.
fn join(running: &mut Running, members: u32) {
    let worker = TaskId::worker(running.workers.len() as u32);
    running.workers.push(running.cluster.start_with(worker, &[MAX]));
    joined(running, members);
}

fn joined(running: &mut Running, members: u32) {
    running.workers.last_mut().expect("it was started").wait_for("joining the running job at step");
    running.wait_for_members(members);
    running.wait_for_more(20);
}

/// Returns the shares that a worker has read after its first one, as its log tells them.
fn shares(log: &str) -> Vec<String> {
    let said = log.split("reading share ").skip(1);
    said.map(|line| line.split(" from").next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn workers_join_and_leave_and_no_count_changes() {
    let modes = ["async", "bounded:1", "sync", "sync:2", "without ps", "on one worker"];
    under_each(&modes, |mode| {
        let without_ps = "--strategy=multi_worker_mirrored".to_owned();
        let (ps, update, partitioner) = match mode {
            "without ps" => (0, without_ps, "--partitioner=none"),
            "on one worker" => (0, without_ps, "--partitioner=auto"),
            mode => (2, format!("--sync={mode}"), "--partitioner=auto"),
        };
        let mut running = start(ps, &[&update, partitioner]);
        running.wait_for_version(20);
        for members in [3, 4] {
            join(&mut running, members);
            // The reply to a report tells the share, so a worker learns it later than it has new partners.
            running.workers[0].wait_for(&format!("reading share 0 of {members}"));
        }
        running.workers[3].signal(Signal::KILL);
        running.workers[3].wait().expect(-9);
        let slowed = running.slowed(&[0, 1, 2]);
        running.chief.wait_for("worker lost; the others go on worker=worker/3");
        drop(slowed);
        running.wait_for_members(3);
        running.wait_for_more(20);
        // The killed worker comes back.
        running.workers[3] = running.cluster.start_with(TaskId::worker(3), &[MAX]);
        joined(&mut running, 4);
        running.workers[2].signal(Signal::TERM);
        running.workers[2].wait();
        running.wait_for_members(3);
        running.wait_for_more(20);
        let last = || shares(&running.workers[0].err()).pop().is_some_and(|share| share == "0 of 3");
        wait_until("its last share", PATIENCE, || last().then_some(()));
        // A job without ps tasks needs the workers that host them: they stay.
        let report = running.stop_well_without(&[2]);
        let made = report.count("updates_applied");
        let gradients = report.count("gradients");
        match mode {
            "sync" | "without ps" | "on one worker" => {
                assert!((2 * made..4 * made).contains(&gradients), "{gradients}")
            }
            "sync:2" => assert_eq!(gradients, 2 * made),
            _ => assert_eq!(gradients, made),
        }
    });
}

#[test]
fn a_job_with_more_workers_goes_on_from_its_checkpoint() {
    let mut cluster = Cluster::with(1, 2, 2, |dir| Job::with(dir, ENDLESS, &["--sync=sync"]));
    let saved = checkpoints::directory(cluster.dir());
    let to = format!("--checkpoint-dir={}", saved.display());
    cluster.chief_flags = vec![to, "--save-steps=20".into()];
    let mut running = Running::of(cluster, &[MAX]);
    running.wait_for_version(20);
    join(&mut running, 3);
    // The job rolls back, and all three workers are members again.
    running.ps[1].kill();
    running.ps[1] = running.cluster.start(TaskId::ps(1));
    running.chief.wait_for("rolling the job back to its latest checkpoint");
    running.wait_for_members(3);
    running.wait_for_more(40);
    running.kill_all();
    let Running { cluster, .. } = running;
    let mut running = Running::of(cluster, &[MAX]);
    running.chief.wait_for("restored step-");
    running.wait_for_members(2);
    running.wait_for_more(20);
    join(&mut running, 3);
    running.stop_well_without(&[]);
}

#[test]
fn a_worker_that_may_not_join_hears_why() {
    let mut running = Running::of(Cluster::new(2, 2, ENDLESS), &[]);
    running.wait_for_version(20);
    let mut stranger = running.cluster.start_with(TaskId::worker(2), &[MAX]);
    let ended = stranger.wait().expect_failure();
    for word in ["worker/2 is not in the cluster, which lists 2 worker(s)", "--workers-max 3"] {
        assert!(ended.last_line().contains(word), "'{word}' in {}", ended.err);
    }
    let mut unlisted = running.cluster.start(TaskId::worker(2));
    let ended = unlisted.wait().expect(2);
    assert!(ended.last_line().contains("out of range, expected --task-index from 0 to 1"), "{}", ended.err);
    running.stop_well_without(&[]);
}
