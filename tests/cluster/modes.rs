//! Tests of the guarantees of each policy, as they can be observed from outside: which tasks wait, which
//! gradients count, and which bits result.

use pushpull_messages::id::TaskId;
use rustix::process::Signal;

use crate::harness::{
    Cluster, ENDLESS, Job, Program, Report, Running, TinyDigits, example, role, under_each,
};

/// Returns one count of the report for every shard.
fn counts(report: &Report, key: &str) -> Vec<u64> {
    report.shards().iter().map(|shard| shard[key].as_u64().expect("a count")).collect()
}

#[test]
fn the_first_gradient_makes_the_update_and_the_other_is_stale() {
    let mut running = Running::start(2, ENDLESS, &["--sync=sync:1"]);
    running.wait_for_version(20);
    // The second worker is stopped during some updates. When it continues, the first worker is stopped, so
    // that the stale push is observed before the job ends.
    running.workers[1].signal(Signal::STOP);
    let seen = running.wait_for_shards("any", |_| true);
    let versions = seen.iter().map(|seen| seen.version.0).max().expect("shards");
    running.wait_for_version(versions + 10);
    running.workers[0].signal(Signal::STOP);
    running.workers[1].signal(Signal::CONT);
    running.wait_for_shards("a stale push", |now| now.pushes.stale > 0);
    running.workers[0].signal(Signal::CONT);
    let report = running.stop_well_without(&[]);
    assert_eq!(counts(&report, "held"), [report.count("updates_applied"); 2]);
    assert!(counts(&report, "stale").iter().all(|&stale| stale > 0));
    assert_eq!(counts(&report, "staleness_max"), [0; 2], "what is in an update was computed at its version");
}

#[test]
fn nobody_is_further_ahead_of_a_frozen_worker_than_the_bound() {
    let mut running = Running::start(3, ENDLESS, &["--sync=bounded:1"]);
    running.wait_for_version(20);
    running.workers[2].signal(Signal::STOP);
    running.wait_for_waiting(2);
    running.workers[2].signal(Signal::CONT);
    let report = running.stop_well_without(&[]);
    assert_eq!(counts(&report, "held"), [0; 2]);
    assert_eq!(counts(&report, "steps_behind_max"), [1; 2], "the bound was reached, and kept");
}

#[test]
fn nobody_waits_for_a_frozen_worker_where_all_is_asynchronous() {
    const STEPS: u64 = 1000;
    for policy in ["async", "async:staleness-lr"] {
        let mut running = Running::start(2, STEPS, &[&format!("--sync={policy}")]);
        running.wait_for_version(20);
        running.workers[1].signal(Signal::STOP);
        // The other worker trains to its last step.
        running.wait_for_version(STEPS);
        running.workers[1].signal(Signal::CONT);
        let report = running.end_well_without(&[]);
        assert_eq!(report.text("sync"), policy);
        assert_eq!((counts(&report, "held"), counts(&report, "stale")), (vec![0; 2], vec![0; 2]));
    }
}

#[test]
fn a_pipeline_makes_gradients_of_one_worker_stale() {
    const STEPS: u64 = 500;
    let stalest = [1, 2, 4].map(|pipeline| {
        let report = Running::start(1, STEPS, &[&format!("--pipeline={pipeline}")]).end_well_without(&[]);
        assert_eq!(counts(&report, "applied"), [STEPS; 2]);
        assert_eq!((counts(&report, "duplicate"), counts(&report, "refused")), (vec![0; 2], vec![0; 2]));
        // Up to all other steps in flight were begun before the last update.
        assert!(counts(&report, "stopped").iter().all(|&stopped| stopped < pipeline));
        let stalest = counts(&report, "staleness_max");
        assert!(stalest.iter().all(|&stalest| stalest < pipeline), "{stalest:?} with {pipeline}");
        stalest[0]
    });
    assert!(stalest[0] == 0 && stalest[2] > 0, "{stalest:?}");
}

/// Runs a deterministic job with one process for each task, started in this order. Returns the checksum of
/// the variables.
fn bits_of_processes(data: &str, order: &[TaskId], threads: &str) -> u64 {
    let cluster = Cluster::with(1, 2, 3, |dir| {
        Job::with(dir, 60, &["--seed=5", "--sync=sync", "--deterministic", "--partitioner=fixed:3", data])
    });
    let start = |&task: &TaskId| {
        let mut command = role(task.job);
        command.env("TF_CONFIG", cluster.spec.to_tf_config(task));
        let usual = cluster.usual(task).into_iter();
        let threads = |flag: String| if flag.starts_with("--threads") { threads.to_owned() } else { flag };
        cluster.spawn(task, command.args(usual.map(threads)))
    };
    let mut programs: Vec<Program> = order.iter().map(start).collect();
    for program in &mut programs {
        program.wait().expect(0);
    }
    cluster.finished().variables_crc32c()
}

#[test]
fn deterministic_runs_are_bit_equal_in_any_shape() {
    let (chief, ps, worker) = (TaskId::CHIEF, TaskId::ps, TaskId::worker);
    let dir = tempfile::tempdir().unwrap();
    let data = TinyDigits::write(dir.path()).flag();
    let forwards = [chief, ps(0), ps(1), worker(0), worker(1), worker(2)];
    let expected = bits_of_processes(&data, &forwards, "--threads=1");
    let backwards = [worker(2), worker(1), ps(1), worker(0), ps(0), chief];
    assert_eq!(bits_of_processes(&data, &backwards, "--threads=2"), expected);
    for shape in
        [&["--ps=2", "--threads=1", "--partitioner=fixed:3"][..], &["--ps=1", "--shards=3", "--threads=2"]]
    {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.json");
        let mut command = example();
        command.args(["--steps=60", "--batch-size=16", "--workers=3", "--seed=5"]);
        command.args(["--sync=sync", "--deterministic", &data]).args(shape).arg("--report").arg(&path);
        Program::run(dir.path(), "example", &mut command).expect(0);
        assert_eq!(Report::read(&path).variables_crc32c(), expected, "{shape:?}");
    }
}

#[test]
fn training_ends_without_the_chief_under_every_policy() {
    const STEPS: u64 = 500;
    under_each(&["bounded:1", "sync", "sync:2"], |policy| {
        let mut running = Running::start(3, STEPS, &[&format!("--sync={policy}")]);
        running.wait_for_version(20);
        running.chief.signal(Signal::KILL);
        for worker in &mut running.workers {
            worker.wait().expect_failure().says("finished after ").says("chief/0");
        }
    });
}
