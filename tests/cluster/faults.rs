//! Tests with a network that drops, duplicates, delays and reorders frames, and cuts connections. This
//! changes only the time that training takes: every gradient counts exactly once.

use pushpull_messages::id::TaskId;

use crate::harness::{Cluster, Job, PATIENCE, Program, Proxy, Rates, free_port, wait_until};

const CHIEF: TaskId = TaskId::CHIEF;
const PS: TaskId = TaskId::ps(0);
const WORKER: TaskId = TaskId::worker(0);
const SECOND: TaskId = TaskId::worker(1);

/// The rates of faults between the chief and the workers. They are higher than `Rates::BAD`, because the
/// chief and the workers exchange far fewer frames.
const CHIEF_RATES: Rates = Rates {
    drop_reply: 100,
    double_reply: 200,
    delay_reply: 100,
    reorder_reply: 100,
    double_request: 200,
    cut: 50,
    cut_in_frame: 50,
};

/// A cluster whose chief and ps can be reached only through proxies that cause faults.
struct Disturbed {
    /// The programs in this order: chief, ps, workers.
    programs: Vec<Program>,
    cluster: Cluster,
    /// The proxy in front of the chief, and the proxy in front of the ps.
    proxies: [Proxy; 2],
}

impl Disturbed {
    fn start(cluster: Cluster, seed: u64) -> Self {
        let mut programs = Vec::new();
        let proxies = [(CHIEF, CHIEF_RATES, None), (PS, Rates::BAD, Some("--shards=2"))].map(
            |(task, rates, flag): (TaskId, Rates, Option<&str>)| {
                let behind = format!("127.0.0.1:{}", free_port());
                let proxy = Proxy::start(&cluster.address(task), &behind, rates, seed);
                let bind = format!("--bind={behind}");
                let flags = [Some(bind.as_str()), Some("--retry-after-ms=50"), flag];
                programs.push(cluster.start_with(task, &flags.into_iter().flatten().collect::<Vec<_>>()));
                proxy
            },
        );
        for worker in [WORKER, SECOND] {
            programs.push(cluster.start_with(worker, &["--retry-after-ms=50"]));
        }
        Self { programs, cluster, proxies }
    }

    fn faults(&self) -> u64 {
        self.proxies.iter().map(|proxy| proxy.faults().total()).sum()
    }

    /// Waits until this number of faults has occurred. Then ends the faults, and waits until all tasks have
    /// ended well. The faults must end first, because no task can know whether its last message arrived.
    #[track_caller]
    fn end_well_after(&mut self, faults: u64) {
        wait_until(&format!("{faults} faults"), PATIENCE, || {
            let seen = self.faults();
            assert!(self.programs.iter_mut().all(Program::is_running), "ended after {seen} faults");
            (seen >= faults).then_some(())
        });
        self.proxies.iter().for_each(Proxy::calm_down);
        for program in &mut self.programs {
            program.wait().expect(0);
        }
    }
}

#[test]
fn a_bad_network_loses_and_doubles_no_gradient() {
    let mut disturbed = Disturbed::start(cluster(2400, &[]), 1);
    disturbed.end_well_after(1200);
    let report = disturbed.cluster.finished();
    let [chief, ps] = disturbed.proxies.each_ref().map(Proxy::faults);
    assert!(chief.total() > 0 && ps.total() >= 1000, "{chief:?}, {ps:?}");
    for seen in [ps.dropped, ps.doubled_replies, ps.delayed, ps.reordered, ps.doubled_requests] {
        assert!(seen >= 10, "{ps:?}");
    }
    assert!(ps.cut > 0 && ps.cut_in_frame > 0, "{ps:?}");
    for shard in report.shards() {
        let duplicates = shard["duplicate"].as_u64().expect("a count");
        assert!(duplicates >= 50, "{duplicates} pushes came twice, with {ps:?}");
    }
    for worker in &disturbed.programs[2..] {
        assert!(worker.err().contains("reconnected to ps/0"), "{}", worker.err());
    }
}

/// Checks that the pushes of a pipeline count once each, even if a connection breaks while several of them
/// are in flight.
#[test]
fn a_bad_network_loses_no_push_of_a_pipeline() {
    let mut disturbed = Disturbed::start(cluster(2400, &["--pipeline=3"]), 4);
    disturbed.end_well_after(1200);
    let report = disturbed.cluster.finished();
    let ps = disturbed.proxies[1].faults();
    assert!(ps.total() >= 1000 && ps.cut > 0 && ps.cut_in_frame > 0, "{ps:?}");
    for shard in report.shards() {
        assert!(shard["duplicate"].as_u64().expect("a count") >= 50, "{shard}");
        assert!(
            shard["staleness_max"].as_u64().expect("a count") >= 2,
            "several pushes were in flight: {shard}"
        );
    }
}

fn cluster(steps: u64, flags: &[&str]) -> Cluster {
    Cluster::with(1, 1, 2, |dir| Job::with(dir, steps, flags))
}

#[test]
fn a_bad_network_changes_no_bit_of_a_deterministic_job() {
    let (steps, flags) = (1000, ["--sync=sync", "--deterministic", "--optimizer=adam"]);
    let quiet = cluster(steps, &flags);
    let programs = quiet.start_all();
    programs.into_iter().for_each(|mut program| drop(program.wait().expect(0)));
    let expected = quiet.finished().variables_crc32c();

    let mut disturbed = Disturbed::start(cluster(steps, &flags), 2);
    disturbed.end_well_after(2000);
    let report = disturbed.cluster.finished();
    assert_eq!(report.variables_crc32c(), expected);
    for shard in report.shards() {
        assert_eq!(shard["held"], 2 * steps, "S1: every gradient is in the update that it was computed for");
        assert!(shard["duplicate"].as_u64().expect("a count") >= 50, "{shard}");
    }
}

#[test]
fn bounded_staleness_holds_through_a_bad_network() {
    let mut disturbed = Disturbed::start(cluster(1500, &["--sync=bounded:1"]), 3);
    disturbed.end_well_after(600);
    for shard in disturbed.cluster.finished().shards() {
        assert!(shard["steps_behind_max"].as_u64().expect("a count") <= 1, "S2: {shard}");
    }
}
