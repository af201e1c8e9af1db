//! Tests of signals and of tasks that are killed. A task that is told to end shuts down in order, no task
//! waits for a killed task, and no task hangs.

use std::time::Duration;

use pushpull_messages::id::TaskId;
use rustix::process::Signal;

use crate::harness::{Cluster, ENDLESS, Endpoint, Program, Slowed, TinyDigits, example, wait_for_version};

const CHIEF: TaskId = TaskId::CHIEF;
const PS: TaskId = TaskId::ps(0);
const WORKER: TaskId = TaskId::worker(0);
const SECOND: TaskId = TaskId::worker(1);

/// The time limit for the remaining tasks to notice the event and end.
const PROMPT: Duration = Duration::from_secs(15);

/// Starts a cluster and waits until it trains. Returns the programs of the chief, the ps, worker 0 and
/// worker 1.
fn training(steps: u64) -> (Cluster, [Program; 4]) {
    let cluster = Cluster::new(1, 2, steps);
    let programs = [CHIEF, PS, WORKER, SECOND].map(|task| cluster.start_with(task, &["--lost-after-s=3"]));
    wait_for_version(&cluster, 50);
    (cluster, programs)
}

#[test]
fn a_signal_to_the_chief_ends_everybody() {
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let (cluster, [mut chief, mut ps, mut worker, mut second]) = training(ENDLESS);
        chief.signal(signal);
        chief.wait_within(PROMPT).expect(status).says("interrupted at step");
        for other in [&mut ps, &mut worker, &mut second] {
            other.wait_within(PROMPT).expect_failure().says("interrupted at step");
        }
        assert!(!cluster.report_path().exists(), "an unfinished job has no report");
    }
}

#[test]
fn a_second_signal_ends_a_chief_at_once() {
    let (_cluster, [mut chief, _ps, mut worker, _second]) = training(ENDLESS);
    // The chief waits for a worker that is stopped.
    worker.signal(Signal::STOP);
    chief.signal(Signal::TERM);
    chief.wait_for("stopping the workers without a checkpoint");
    chief.signal(Signal::TERM);
    chief.wait_within(Duration::from_secs(5)).expect(143).says("a second signal");
}

#[test]
fn a_worker_that_hears_nothing_does_not_hold_up_the_end() {
    let (_cluster, [mut chief, mut ps, mut worker, mut second]) = training(ENDLESS);
    worker.signal(Signal::STOP);
    chief.signal(Signal::TERM);
    chief.wait_within(2 * PROMPT).expect(143);
    ps.wait_within(PROMPT).expect_failure();
    second.wait_within(PROMPT).expect_failure();
    worker.signal(Signal::CONT);
    worker.wait_within(PROMPT).expect_failure();
}

#[test]
fn one_of_two_workers_may_leave() {
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::KILL, -9)] {
        let (cluster, [mut chief, mut ps, mut worker, mut second]) = training(ENDLESS);
        second.signal(signal);
        second.wait_within(PROMPT).expect(status);
        let slowed = Slowed::new(&worker);
        chief.wait_for(if status < 0 {
            "worker lost; the others go on worker=worker/1"
        } else {
            "worker was told to stop and left worker=worker/1"
        });
        drop(slowed);
        cluster.stop(&mut chief);
        for other in [&mut chief, &mut ps, &mut worker] {
            other.wait().expect(0);
        }
        cluster.finished();
    }
}

#[test]
fn a_frozen_ps_counts_as_lost() {
    let (_cluster, [mut chief, mut ps, mut worker, mut second]) = training(ENDLESS);
    ps.signal(Signal::STOP);
    for other in [&mut chief, &mut worker, &mut second] {
        let ended = other.wait_within(2 * PROMPT).expect_failure();
        assert!(ended.last_line().contains("ps/0"), "{}", ended.err);
    }
    ps.signal(Signal::CONT);
    ps.wait_within(PROMPT).expect_failure();
}

#[test]
fn when_all_workers_are_gone_the_job_has_failed() {
    let (cluster, [mut chief, mut ps, mut worker, mut second]) = training(ENDLESS);
    worker.signal(Signal::KILL);
    second.signal(Signal::KILL);
    chief.wait_within(PROMPT).expect_failure().says("no worker is left at step");
    ps.wait_within(PROMPT).expect_failure().says("no worker is left at step");
    assert!(!cluster.report_path().exists());
}

#[test]
fn when_a_ps_is_gone_the_job_has_failed() {
    for (signal, status) in [(Signal::KILL, -9), (Signal::TERM, 143)] {
        let (_cluster, [mut chief, mut ps, mut worker, mut second]) = training(ENDLESS);
        ps.signal(signal);
        ps.wait_within(PROMPT).expect(status);
        for other in [&mut chief, &mut worker, &mut second] {
            let ended = other.wait_within(PROMPT).expect_failure();
            assert!(ended.last_line().contains("ps/0"), "{}", ended.err);
        }
    }
}

#[test]
fn when_the_chief_is_gone_training_goes_on_to_its_end() {
    let (cluster, [mut chief, mut ps, mut worker, mut second]) = training(4000);
    chief.signal(Signal::KILL);
    chief.wait_within(PROMPT).expect(-9);
    // Training has continued: this version is much later than the steps that had begun at the kill.
    wait_for_version(&cluster, 1500);
    let mut steps = 0;
    for other in [&mut worker, &mut second] {
        let ended = other.wait().expect_failure().says("chief/0");
        let finished = ended.err.split("finished after ").nth(1).expect("it trained to the end");
        steps += finished.split(' ').next().and_then(|steps| steps.parse::<u64>().ok()).expect("a number");
    }
    assert!((4000..=4002).contains(&steps), "both together took {steps} steps");
    ps.wait_within(PROMPT).expect_failure().says("the chief left before it reported how the job ended");
}

#[test]
fn a_signal_to_the_worker_that_hosts_the_chief_ends_everybody() {
    let cluster = Cluster::without_chief(1, 2, ENDLESS);
    let [mut ps, mut host, mut second] = [PS, WORKER, SECOND].map(|task| cluster.start(task));
    wait_for_version(&cluster, 50);
    host.signal(Signal::TERM);
    host.wait_within(PROMPT).expect(143);
    for other in [&mut ps, &mut second] {
        other.wait_within(PROMPT).expect_failure();
    }
}

#[test]
fn a_signal_ends_a_task_that_waits_for_its_peers() {
    let cluster = Cluster::new(1, 1, 10);
    for (task, waits) in [(CHIEF, "waiting for 1 ps"), (PS, "serving"), (WORKER, "waiting for chief/0")] {
        let mut program = cluster.start(task);
        program.wait_for(waits);
        program.signal(Signal::TERM);
        program.wait_within(PROMPT).expect(143);
    }
    // This worker has found the chief, and waits for the other tasks.
    let mut chief = cluster.start(CHIEF);
    let mut worker = cluster.start(WORKER);
    worker.wait_for("registering");
    worker.signal(Signal::TERM);
    worker.wait_within(PROMPT).expect(143);
    // The chief continues to wait for a worker.
    let mut others = [cluster.start(PS), cluster.start(WORKER)];
    chief.wait().expect(0);
    for other in &mut others {
        other.wait().expect(0);
    }
}

#[test]
fn a_signal_ends_an_embedded_run() {
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let dir = tempfile::tempdir().unwrap();
        let (path, data) = (dir.path().join("report.json"), TinyDigits::write(dir.path()).flag());
        let mut command = example();
        command.args(["--batch-size=16", "--epochs=1000000", &data, "--report"]).arg(&path);
        let mut program = Program::start(dir.path(), "example", &mut command);
        Endpoint::of(&mut program).wait_for_update();
        program.signal(signal);
        program.wait_within(PROMPT).expect(status).says("interrupted at step");
        assert!(!path.exists());
    }
}
