//! Tests of workers that leave a job before its last step, in every way and under every policy. No task
//! waits for such workers, their pushes count, and they may join again.

use pushpull_messages::id::TaskId;
use rustix::process::Signal;

use crate::harness::{Cluster, ENDLESS, Job, Report, Running, TinyDigits, under_each};

const MODES: [&str; 4] = ["async", "bounded:1", "sync", "sync:2"];

fn policy(mode: &str) -> String {
    format!("--sync={mode}")
}

/// Returns one count of the report for every shard.
fn counts(report: &Report, key: &str) -> Vec<u64> {
    report.shards().iter().map(|shard| shard[key].as_u64().expect("a count")).collect()
}

/// Returns the number of steps that a worker has made, according to its log.
fn steps_of(log: &str) -> u64 {
    let finished = log.split("finished after ").nth(1).expect("it trained to the end");
    finished.split(' ').next().and_then(|steps| steps.parse().ok()).expect("a number")
}

#[test]
fn a_worker_that_is_killed_is_missed_by_nobody() {
    under_each(&MODES, |mode| {
        let mut running = Running::start(3, ENDLESS, &[&policy(mode)]);
        running.wait_for_version(20);
        running.workers[1].signal(Signal::KILL);
        running.workers[1].wait().expect(-9);
        let slowed = running.slowed(&[0, 2]);
        running.chief.wait_for("worker lost; the others go on worker=worker/1");
        drop(slowed);
        running.wait_for_members(2);
        running.wait_for_more(20);
        let report = running.stop_well_without(&[1]);
        let made = report.count("updates_applied");
        for held in counts(&report, "held") {
            match mode {
                // An update has gradients of three workers before the kill, and of two workers after it.
                "sync" => assert!((2 * made + 20..3 * made).contains(&held), "{held} held"),
                "sync:2" => assert_eq!(held, 2 * made),
                _ => assert_eq!(held, 0, "{mode}"),
            }
        }
    });
}

#[test]
fn a_job_that_needs_all_workers_ends_when_one_is_killed() {
    under_each(&MODES, |mode| {
        let mut running = Running::start(3, ENDLESS, &[&policy(mode), "--when-worker-leaves=fail"]);
        running.wait_for_version(20);
        running.workers[1].signal(Signal::KILL);
        let slowed = running.slowed(&[0, 2]);
        running.chief.wait_for("worker lost; ");
        drop(slowed);
        for ended in running.fail_without(&[1]) {
            let said = ended.last_line();
            for word in ["worker/1 left at step", "it is lost", "when_worker_leaves: fail"] {
                assert!(said.contains(word), "{mode}: '{word}' in {}", ended.err);
            }
        }
    });
}

#[test]
fn a_restarted_worker_joins_and_its_pushes_count() {
    under_each(&MODES, |mode| {
        let mut running = Running::start(2, ENDLESS, &[&policy(mode)]);
        running.wait_for_version(20);
        // The other worker is stopped, so that it makes no update alone before the new incarnation joins.
        running.workers[0].signal(Signal::STOP);
        if mode == "async" {
            // The other worker may have made all updates so far. Those from now on are of this worker.
            running.wait_for_more(5);
        }
        running.workers[1].signal(Signal::KILL);
        running.workers[1].wait().expect(-9);
        let before = if mode.starts_with("sync") {
            running.chief.wait_for("worker lost; the others go on worker=worker/1");
            running.wait_for_shards("one member", |seen| seen.members == 1)
        } else {
            running.wait_for_shards("any", |_| true)
        };
        running.start_again(1);
        running.workers[1].wait_for("joining the running job at step");
        running.wait_for_members(2);
        if mode == "async" {
            // Later, the other worker may make all updates.
            running.wait_for_more(5);
        }
        running.workers[0].signal(Signal::CONT);
        running.wait_for_more(20);
        let report = running.stop_well_without(&[]);
        let [first, again] = [0, 1].map(|index| steps_of(&running.workers[index].err()));
        assert!(again > 0, "{mode}: the new life has taken part");
        for (received, before) in counts(&report, "received").into_iter().zip(before) {
            let earlier = received - first - again;
            assert!((1..=before.pushes.received).contains(&earlier), "{mode}: {earlier} and {before:?}");
        }
        if mode == "sync" {
            for held in counts(&report, "held") {
                // At most two updates consist of the gradient of only one worker.
                let made = report.count("updates_applied");
                assert!((2 * made - 2..=2 * made).contains(&held), "{held} held");
            }
        }
    });
}

/// Starts a job with two workers. The data directory of the second worker has fewer examples, which are
/// enough for 6 steps; the first worker has enough for 20 steps.
fn with_less_for_one(mode: &str, steps: u64, more: &[&str]) -> Running {
    let cluster = Cluster::with(1, 2, 2, |dir| {
        let digits = TinyDigits::write(dir);
        let data = digits.dir().to_str().expect("a path in UTF-8").to_owned();
        Job::with(dir, steps, &[&[policy(mode).as_str(), "--data-dir", &data], more].concat())
    });
    cluster.job.edit(|job| job["input"]["repeat"] = serde_json::json!({"epochs": 2}));
    let own = cluster.dir().join("own");
    std::fs::create_dir(&own).expect("the test's directory can be written");
    let fewer = TinyDigits::write(&own);
    fewer.keep(96);
    let own = format!("--data-dir={}", fewer.dir().display());
    let start = |task: TaskId, flags: &[&str]| cluster.start_with(task, flags);
    let chief = start(TaskId::CHIEF, &[]);
    let ps = (0..2).map(|index| start(TaskId::ps(index), &[])).collect();
    let workers = vec![start(TaskId::worker(0), &[]), start(TaskId::worker(1), &[&own])];
    Running { cluster, chief, ps, workers }
}

#[test]
fn a_worker_whose_input_ends_leaves_the_rest_to_the_others() {
    let modes = [("async", 26, 0), ("bounded:1", 26, 0), ("sync", 20, 26), ("sync:2", 20, 26)];
    let running = modes.map(|(mode, steps, held)| (with_less_for_one(mode, steps, &[]), mode, held));
    for (mut running, mode, held) in running {
        let report = running.end_well_without(&[]);
        assert_eq!(counts(&report, "held"), [held; 2], "{mode}");
        assert_eq!(counts(&report, "received"), [26; 2], "{mode}");
        assert!(running.workers[1].err().contains("finished after 6 steps"), "{mode}");
    }
}

#[test]
fn too_short_an_input_ends_the_job_with_the_reason() {
    let running = MODES.map(|mode| with_less_for_one(mode, 27, &[]));
    for mut running in running {
        for ended in running.fail_without(&[]) {
            ended.says("the input has ended after 2 epochs");
        }
    }
}

#[test]
fn a_job_that_wants_all_its_workers_ends_with_the_first_input() {
    // The job needs more steps than both inputs contain, so that one input ends before the job.
    let start = |mode| (mode, with_less_for_one(mode, 27, &["--when-worker-leaves=fail"]));
    for (mode, mut running) in MODES.map(start) {
        // Only under `async` can the first worker finish its examples before the second one does.
        let who = if mode == "async" { " left at step" } else { "worker/1 left at step" };
        for ended in running.fail_without(&[]) {
            let said = ended.last_line();
            for word in [who, "the input has ended after 2 epochs", "when_worker_leaves"] {
                assert!(said.contains(word), "{mode}: '{word}' in {}", ended.err);
            }
        }
    }
}

#[test]
fn a_worker_that_is_told_to_stop_leaves_in_good_order() {
    under_each(&MODES, |mode| {
        let mut running = Running::start(3, ENDLESS, &[&policy(mode)]);
        running.wait_for_version(20);
        running.workers[2].signal(Signal::TERM);
        running.workers[2].wait().expect(143).says("interrupted after");
        running.chief.wait_for("worker was told to stop and left worker=worker/2");
        running.stop_well_without(&[2]);
        let said = running.chief.err();
        assert!(!said.contains("worker lost"), "{said}");
    });
}

/// Starts a cluster with three workers, and stops the third one. Returns when the other two workers wait for
/// it.
fn frozen(mode: &str, flags: &[&str]) -> Running {
    let cluster = Cluster::with(1, 2, 3, |dir| Job::with(dir, ENDLESS, &[&policy(mode)]));
    let mut running = Running::of(cluster, flags);
    running.wait_for_version(20);
    running.workers[2].signal(Signal::STOP);
    running.wait_for_waiting(2);
    running
}

#[test]
fn a_frozen_worker_is_waited_for_until_it_counts_as_lost() {
    // The simulator stops workers for this long under every policy.
    under_each(&["sync"], |mode| {
        let mut running = frozen(mode, &["--lost-after-s=3"]);
        running.chief.wait_for("worker lost; the others go on worker=worker/2");
        running.wait_for_members(2);
        running.wait_for_more(20);
        running.workers[2].signal(Signal::CONT);
        let ended = running.workers[2].wait().expect_failure();
        let said = ended.last_line();
        assert!(
            said.contains("is no longer a member") || said.contains("away for too long"),
            "{}",
            ended.err
        );
        running.wait_for_members(2);
        running.chief.signal(Signal::TERM);
        running.chief.wait().expect(143).says("interrupted at step");
    });
}

#[test]
fn a_frozen_worker_that_is_back_in_time_is_waited_for() {
    under_each(&["bounded:1", "sync"], |mode| {
        let mut running = frozen(mode, &[]);
        running.workers[2].signal(Signal::CONT);
        running.wait_for_more(20);
        let seen = running.wait_for_shards("all", |seen| seen.members == 3);
        assert!(seen.iter().all(|seen| seen.pushes.refused == 0), "{seen:?}");
        running.chief.signal(Signal::TERM);
        running.chief.wait().expect(143);
        for mut other in running.ps.into_iter().chain(running.workers) {
            other.wait().expect_failure().says("interrupted at step");
        }
    });
}

#[test]
fn a_worker_blocked_by_a_frozen_one_hears_of_the_end() {
    // The other workers wait for the third worker, which does not count as lost yet.
    under_each(&["bounded:1", "sync"], |mode| {
        let mut running = frozen(mode, &[]);
        running.workers[1].signal(Signal::TERM);
        running.workers[1].wait().expect(143);
        running.chief.wait_for("worker was told to stop and left worker=worker/1");
        running.chief.signal(Signal::TERM);
        running.workers[0].wait().expect_failure().says("interrupted at step");
    });
}
