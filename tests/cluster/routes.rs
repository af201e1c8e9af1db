//! Tests of gradients that travel to the shards over other workers. The sums are those of all workers, and
//! they count exactly, whatever happens to a worker on the way.

use pushpull::{CommunicationSpec, JobReport, JobSpec, OptimizerSpec};
use rustix::process::Signal;

use crate::harness::{Cluster, ENDLESS, Job, Program, Report, Running, under_each};
use crate::synchronous::{self, difference, optimizers, train_on};

const WAYS: [CommunicationSpec; 2] = [CommunicationSpec::Ring, CommunicationSpec::HalvingDoubling];
const STEPS: u64 = 50;

fn job(workers: u32, communication: CommunicationSpec, optimizer: &OptimizerSpec) -> JobSpec {
    JobSpec { communication, ..synchronous::job(workers, optimizer, STEPS) }
}

/// Checks the counts of a job in which no worker was lost.
#[track_caller]
fn holds(report: &JobReport, workers: u32) {
    for (shard, seen) in &report.shards {
        let expected = STEPS * u64::from(workers);
        assert!(seen.pushes.add_up(), "V2 on {shard}: {seen:?}");
        assert_eq!((seen.version.0, seen.pushes.held), (STEPS, expected), "V3 on {shard}");
        assert_eq!(seen.pushes.refused + seen.pushes.stale, 0, "{shard}: {seen:?}");
    }
}

#[test]
fn sums_that_travel_are_those_of_one_worker() {
    for optimizer in optimizers() {
        let (expected, _) = train_on((1, 1), 1, 1, job(1, CommunicationSpec::Direct, &optimizer));
        for way in WAYS {
            // Without ps tasks, the workers store the variables.
            for (workers, ps) in [(1, 1), (2, 2), (3, 0), (4, 2), (5, 0)] {
                let (values, report) = train_on((ps, workers), 1, 1, job(workers, way, &optimizer));
                let off = difference(&values, &expected);
                assert!(off <= 1e-5, "{}, {way}, {workers} workers: {off}", optimizer.name());
                holds(&report, workers);
            }
        }
    }
}

#[test]
fn each_way_gives_its_own_bits_twice() {
    for way in WAYS {
        let [one, other] = [0, 1].map(|_| {
            let job = JobSpec { deterministic: true, ..job(5, way, &OptimizerSpec::adam(0.001)) };
            let (_, report) = train_on((3, 5), 1, 1, job);
            holds(&report, 5);
            report.evaluation.variables_crc32c
        });
        assert_eq!(one, other, "{way}");
    }
}

/// Starts a job of real processes with two ps tasks.
#[track_caller]
fn start(workers: u32, steps: u64, way: CommunicationSpec, more: &[&str]) -> Running {
    let way = format!("--communication={way}");
    Running::start(workers, steps, &[&["--sync=sync", "--schedule=constant", &way], more].concat())
}

fn sum_of(report: &Report, key: &str) -> u64 {
    report.shards().iter().map(|shard| shard[key].as_u64().expect("a count")).sum()
}

#[test]
fn processes_agree_on_every_way() {
    const STEPS: u64 = 40;
    for workers in [1, 2, 3, 5] {
        let mut losses = Vec::new();
        for way in [CommunicationSpec::Direct, CommunicationSpec::Ring, CommunicationSpec::HalvingDoubling] {
            let mut digests = Vec::new();
            for _ in 0..2 {
                let mut running = start(workers, STEPS, way, &["--deterministic"]);
                let report = running.end_well_without(&[]);
                assert_eq!(sum_of(&report, "held"), 2 * STEPS * u64::from(workers), "{way}");
                assert_eq!(sum_of(&report, "refused"), 0, "{way}");
                digests.push(report.variables_crc32c());
                losses.push(report.number("test_loss"));
                let logs: Vec<String> = running.workers.iter().map(Program::err).collect();
                let relays = logs.iter().filter(|log| log.contains("passing on the gradients"));
                assert_eq!(relays.count() > 0, way.has_routes() && workers > 1, "{way}: {logs:?}");
                assert!(logs.iter().all(|log| !log.contains("pushing to shards directly")), "{logs:?}");
            }
            assert_eq!(digests[0], digests[1], "{way} with {workers} workers");
        }
        let first = losses[0];
        assert!(losses.iter().all(|loss| (loss - first).abs() < 1e-4), "{workers} workers: {losses:?}");
    }
}

/// Worker 0 hosts the chief, and every worker has a part of the variables, on one port for all its tasks.
#[test]
fn gradients_travel_between_workers_that_store_the_variables() {
    const STEPS: u64 = 40;
    for workers in [2, 3] {
        let mut losses = Vec::new();
        for way in ["direct", "ring", "halving_doubling"] {
            let communication = format!("--communication={way}");
            let flags =
                ["--strategy=multi_worker_mirrored", "--partitioner=none", "--deterministic", &communication];
            let cluster = Cluster::with(0, 0, workers, |dir| Job::with(dir, STEPS, &flags));
            let mut logs = String::new();
            for mut program in cluster.start_all() {
                logs.push_str(&program.wait().expect(0).err);
            }
            let report = cluster.finished();
            let held = u64::from(workers * workers) * STEPS;
            assert_eq!((sum_of(&report, "held"), sum_of(&report, "refused")), (held, 0), "{way}");
            assert_eq!(logs.contains("passing on the gradients"), way != "direct", "{logs}");
            assert!(!logs.contains("pushing to shards directly"), "{logs}");
            losses.push(report.number("test_loss"));
        }
        assert!(losses.iter().all(|loss| (loss - losses[0]).abs() < 1e-4), "{workers} workers: {losses:?}");
    }
}

#[test]
fn a_killed_relay_takes_no_other_gradient_with_it() {
    under_each(&["ring", "halving_doubling"], |way| {
        let mut running = start(4, ENDLESS, way.parse().expect("a way"), &[]);
        running.wait_for_version(20);
        running.workers[1].signal(Signal::KILL);
        running.workers[1].wait().expect(-9);
        running.chief.wait_for("worker lost; the others go on worker=worker/1");
        running.wait_for_members(3);
        running.wait_for_more(20);
        let report = running.stop_well_without(&[1]);
        let made = report.count("updates_applied");
        for shard in report.shards() {
            let held = shard["held"].as_u64().expect("a count");
            // An update has gradients of four workers before the kill, and of three workers after it.
            assert!((3 * made + 20..4 * made).contains(&held), "{held} of {made} in {shard:#}");
        }
    });
}

#[test]
fn a_relay_that_comes_back_takes_part_again() {
    under_each(&["ring", "halving_doubling"], |way| {
        let mut running = start(3, ENDLESS, way.parse().expect("a way"), &[]);
        running.wait_for_version(20);
        running.workers[1].signal(Signal::KILL);
        running.workers[1].wait().expect(-9);
        running.chief.wait_for("worker lost; the others go on worker=worker/1");
        running.start_again(1);
        running.workers[1].wait_for("joining the running job at step");
        running.wait_for_members(3);
        running.wait_for_more(20);
        running.stop_well_without(&[]);
    });
}

#[test]
fn a_stopped_relay_is_waited_for_only_until_it_is_lost() {
    under_each(&["ring", "halving_doubling"], |way| {
        let mut running = start(3, ENDLESS, way.parse().expect("a way"), &[]);
        running.wait_for_version(20);
        running.workers[1].signal(Signal::STOP);
        running.chief.wait_for("worker lost; the others go on worker=worker/1");
        running.wait_for_members(2);
        running.wait_for_more(20);
        running.workers[1].signal(Signal::KILL);
        running.workers[1].wait().expect(-9);
        running.stop_well_without(&[1]);
    });
}
