//! Tests of jobs that are stopped, killed or interrupted, and then resume. No saved update is lost or made
//! twice, and a job can always resume from its checkpoint directory (C1, C2).

mod damage;
mod evaluating;
mod killing;
mod python;
mod resuming;
mod shapes;
mod stopping;

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness::{Cluster, Job, PATIENCE, Program, Running, tool, wait_until};

/// Returns a cluster that trains deterministically and has a checkpoint directory of its own. The learning
/// rate changes with every step, and does not depend on the last one.
fn deterministic(ps: u32, workers: u32, steps: u64, chief_flags: &[&str]) -> Cluster {
    let schedule = "--schedule=exponential:100:0.9";
    saving(ps, workers, steps, &["--sync=sync", "--deterministic", "--optimizer=adam", schedule], chief_flags)
}

/// Returns a cluster that has a checkpoint directory of its own, and a job with these flags.
fn saving(ps: u32, workers: u32, steps: u64, flags: &[&str], chief_flags: &[&str]) -> Cluster {
    let mut cluster = Cluster::with(1, ps, workers, |dir| Job::with(dir, steps, flags));
    cluster.chief_flags = vec![format!("--checkpoint-dir={}", directory(cluster.dir()).display())];
    cluster.chief_flags.extend(chief_flags.iter().map(ToString::to_string));
    cluster
}

/// Returns the checkpoint directory of a job that has its files in `dir`.
pub(crate) fn directory(dir: &Path) -> PathBuf {
    dir.join("checkpoints")
}

/// Restarts all tasks of a job that was killed or stopped, and whose last checkpoint is of step `saved`. Lets
/// it end some steps later, and checks that its variables have the same bits as those of a job that runs
/// without interruption. Both have two ps tasks and two workers.
#[track_caller]
fn ends_bit_equal(mut running: Running, saved: u64) -> Running {
    let steps = saved + 200;
    running.cluster.job.end_after(steps);
    let mut running = running.all_again();
    running.chief.wait_for(&format!("restored step-{saved}-"));
    let report = running.end_well_without(&[]);
    assert_eq!(report.variables_crc32c(), undisturbed(deterministic(2, 2, steps, &[])));
    assert_eq!(report.count("began"), saved);
    running
}

/// Runs a job without interruption, and returns the checksum of its variables.
fn undisturbed(cluster: Cluster) -> u64 {
    let mut running = Running::of(cluster, &[]);
    running.end_well_without(&[]).variables_crc32c()
}

/// Returns the output of `pushpull checkpoint list` for a directory, the newest checkpoint last.
#[track_caller]
fn list(directory: &Path) -> Vec<Value> {
    let mut command = tool();
    command.args(["checkpoint", "list", "--json"]).arg(directory);
    let ended = Program::run(directory.parent().expect("a test's directory"), "list", &mut command).expect(0);
    let listed: Value = serde_json::from_str(&ended.out).expect("a list in JSON");
    listed.as_array().expect("a list").clone()
}

/// Returns the steps of all valid checkpoints, in ascending order.
#[track_caller]
pub(crate) fn steps(directory: &Path) -> Vec<u64> {
    whole(&list(directory))
}

/// Returns the steps of the valid checkpoints in a list, in ascending order.
fn whole(listed: &[Value]) -> Vec<u64> {
    let valid = |entry: &&Value| entry["state"] == "whole";
    let step = |entry: &Value| entry["step"].as_u64().expect("a step");
    let mut steps: Vec<u64> = listed.iter().filter(valid).map(step).collect();
    steps.sort_unstable();
    steps
}

/// Waits until the task that hosts the chief logs that it has saved a step of at least `at_least`. Returns
/// the newest saved step.
#[track_caller]
fn wait_for_save(program: &mut Program, at_least: u64) -> u64 {
    wait_until(&format!("a checkpoint of step {at_least}"), PATIENCE, || {
        let running = program.is_running();
        let newest = program
            .err()
            .split("saved step-")
            .skip(1)
            .filter_map(|rest| rest.split('-').next()?.parse().ok())
            .max();
        let found = newest.filter(|&step: &u64| step >= at_least);
        assert!(running || found.is_some(), "it ended with {newest:?} as its newest checkpoint");
        found
    })
}

/// Checks every byte of the newest valid checkpoint.
#[track_caller]
fn verify(directory: &Path) {
    let mut command = tool();
    command.args(["checkpoint", "verify"]).arg(directory);
    Program::run(directory.parent().expect("a test's directory"), "verify", &mut command).expect(0);
}
