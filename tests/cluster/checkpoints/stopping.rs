//! Tests of jobs that are told to stop. All updates are in a checkpoint, and every task ends with status 0.
//! When the job is started again, it gives the same result as a job that was never stopped.

use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{ENDLESS, Program, Running, TinyDigits, example, under_each};

use super::{deterministic, directory, ends_bit_equal, saving, steps, verify, wait_for_save};

/// The time limit for a stopped job to be saved and for all tasks to end: the documented 25 s, and some time
/// for a busy machine.
const STATED: Duration = Duration::from_secs(30);

/// Waits until all tasks have ended, and checks that each has the status 0.
#[track_caller]
fn all_leave(running: &mut Running) {
    let programs = [&mut running.chief].into_iter().chain(&mut running.ps).chain(&mut running.workers);
    for program in programs {
        program.wait_within(STATED).expect(0);
    }
    assert!(!running.cluster.report_path().exists(), "an unfinished job has no report");
}

#[test]
fn a_job_stopped_repeatedly_is_bit_equal() {
    let mut running = Running::of(deterministic(2, 2, ENDLESS, &[]), &[]);
    let directory = directory(running.cluster.dir());
    let mut saved = 0;
    for (signal, all) in [(Signal::TERM, false), (Signal::INT, false), (Signal::TERM, true)] {
        if saved > 0 {
            running = running.all_again();
            running.chief.wait_for(&format!("restored step-{saved}-"));
        }
        let version = saved + 100;
        running.wait_for_version(version);
        // The last time, all tasks get the signal, the workers first. No task may leave before the others.
        if all {
            let others = running.workers.iter_mut().chain(&mut running.ps);
            others.for_each(|program| program.signal(signal));
        }
        running.chief.signal(signal);
        all_leave(&mut running);
        saved = *steps(&directory).last().expect("it has saved");
        assert!(saved >= version, "{saved}");
        verify(&directory);
    }
    ends_bit_equal(running, saved);
}

#[test]
fn all_tasks_may_be_told_at_once_under_every_policy() {
    under_each(&["async", "bounded:1", "sync", "sync:1"], |mode| {
        let sync = format!("--sync={mode}");
        let mut running = Running::of(saving(2, 2, ENDLESS, &[&sync], &[]), &[]);
        running.wait_for_workers();
        running.wait_for_version(30);
        let programs = running.workers.iter_mut().chain(&mut running.ps).chain([&mut running.chief]);
        programs.for_each(|program| program.signal(Signal::TERM));
        all_leave(&mut running);
        let saved = *steps(&directory(running.cluster.dir())).last().expect("it has saved");
        assert!(saved >= 30, "{mode}: {saved}");
        let mut running = running.all_again();
        running.wait_for_version(saved + 20);
        let report = running.stop_well_without(&[]);
        assert_eq!(report.count("began"), saved, "{mode}");
    });
}

#[test]
fn a_ps_that_is_told_to_stop_ends_the_job_with_all_saved() {
    let mut running = Running::of(saving(2, 2, ENDLESS, &[], &[]), &[]);
    running.wait_for_version(30);
    running.ps[1].signal(Signal::TERM);
    all_leave(&mut running);
    assert!(running.chief.err().contains("ps/1"), "it says why: {}", running.chief.err());
    let mut running = running.all_again();
    running.chief.wait_for("restored step-");
    assert!(running.stop_well_without(&[]).count("began") >= 30);
}

#[test]
fn a_worker_that_is_told_to_stop_leaves_with_nothing_lost() {
    let mut running = Running::of(saving(1, 2, ENDLESS, &[], &[]), &[]);
    running.wait_for_workers();
    running.wait_for_version(30);
    running.workers[1].signal(Signal::TERM);
    let slowed = running.slowed(&[0, 1]);
    running.chief.wait_for("worker was told to stop and left worker=worker/1");
    drop(slowed);
    running.workers[1].wait_within(STATED).expect(0);
    running.stop_well_without(&[1]);
}

#[test]
fn an_embedded_run_is_stopped_and_goes_on() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (saved, data) = (directory(dir.path()), TinyDigits::write(dir.path()).flag());
    let start = || {
        let mut command = example();
        command
            .args(["--batch-size=16", "--steps=3000", "--save-steps=100", &data])
            .arg(format!("--checkpoint-dir={}", saved.display()));
        Program::start(dir.path(), "example", &mut command)
    };
    let mut program = start();
    wait_for_save(&mut program, 100);
    program.signal(Signal::TERM);
    program.wait_within(STATED).expect(0);
    let step = *steps(&saved).last().expect("it has saved");
    let mut program = start();
    program.wait_for(&format!("restored step-{step}-"));
    program.wait().expect(0);
    assert_eq!(steps(&saved).last(), Some(&3000));
}

#[test]
fn a_second_signal_still_ends_it_at_once() {
    let mut running = Running::of(saving(1, 2, ENDLESS, &["--sync=sync"], &[]), &[]);
    running.wait_for_version(30);
    // The chief would wait for this worker, which is stopped.
    running.workers[0].signal(Signal::STOP);
    running.chief.signal(Signal::TERM);
    running.chief.wait_for("stopping before the last step");
    running.chief.signal(Signal::TERM);
    running.chief.wait_within(Duration::from_secs(5)).expect(143);
}
