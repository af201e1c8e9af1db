//! Tests that after a run with network faults the metrics agree with the report (V2, V3).

use pushpull_messages::id::TaskId;
use rustix::process::Signal;

use crate::harness::{Cluster, Endpoint, Job, PATIENCE, Program, Proxy, Rates, free_port, wait_until};

#[test]
fn counters_add_up_after_a_run_with_faults() {
    let (cluster, ps) = (Cluster::with(1, 1, 2, |dir| Job::new(dir, 1500)), TaskId::ps(0));
    let behind = format!("127.0.0.1:{}", free_port());
    let proxy = Proxy::start(&cluster.address(ps), &behind, Rates::BAD, 7);
    let bind = format!("--bind={behind}");
    let often = "--retry-after-ms=50";
    // The endpoints must still answer after the end of the job.
    let stays = "--http-linger-s=600";
    let mut chief = cluster.start_with(TaskId::CHIEF, &[often, stays]);
    let mut server = cluster.start_with(ps, &[&bind, often, stays, "--shards=2"]);
    let mut workers = [0, 1].map(|index| cluster.start_with(TaskId::worker(index), &[often, stays]));
    let endpoint = Endpoint::of(&mut server);
    wait_until("600 faults", PATIENCE, || {
        assert!(workers.iter_mut().all(Program::is_running), "ended too early");
        (proxy.faults().total() >= 600).then_some(())
    });
    proxy.calm_down();
    wait_until("the report", PATIENCE, || cluster.report_path().exists().then_some(()));
    wait_until("the end of the ps task", PATIENCE, || {
        (endpoint.ask("/readyz").1.contains("ended")).then_some(())
    });
    let (metrics, report) = (endpoint.metrics(), cluster.finished());
    let (mut duplicates, mut of_shards) = (0, [0; 4]);
    for (number, shard) in report.shards().iter().enumerate() {
        let name = format!("ps/0/shard/{number}");
        let own = [("shard", name.as_str())];
        let verdict = |verdict| metrics.count("pushpull_pushes_total", &[own[0], ("verdict", verdict)]);
        for name in ["applied", "held", "stale", "stopped", "duplicate", "refused"] {
            assert_eq!(verdict(name), shard[name].as_u64().expect("a count"), "{name} of shard {number}");
        }
        let received = metrics.count("pushpull_pushes_received_total", &own);
        assert_eq!(received, metrics.count("pushpull_pushes_total", &own), "V2");
        assert_eq!(metrics.count("pushpull_shard_version", &own), cluster.job.steps, "V3");
        let counted = metrics.count("pushpull_push_staleness_versions_count", &own);
        assert_eq!(counted, verdict("applied"), "every gradient that is in the variables has a staleness");
        duplicates += verdict("duplicate");
        for (sum, name) in of_shards.iter_mut().zip(["applied", "held", "stale", "stopped"]) {
            *sum += verdict(name);
        }
    }
    assert!(duplicates > 50, "the faults were no trouble: {duplicates}");
    // The verdicts that the workers received must agree with the shards' counts.
    let told = workers.each_mut().map(|worker| Endpoint::of(worker).metrics());
    for (name, counted) in ["applied", "held", "stale", "stopped"].into_iter().zip(of_shards) {
        let sum: u64 = told
            .iter()
            .map(|worker| worker.count("pushpull_worker_pushes_total", &[("verdict", name)]))
            .sum();
        assert_eq!(sum, counted, "{name}");
    }
    let reconnections: u64 =
        told.iter().map(|worker| worker.count("pushpull_reconnections_total", &[])).sum();
    assert!(reconnections > 0, "connections were cut");
    let job = Endpoint::of(&mut chief).json("/job");
    assert_eq!((&job["phase"], job["step"].as_u64()), (&"ended".into(), Some(cluster.job.steps)), "{job}");
    for program in [&mut chief, &mut server].into_iter().chain(&mut workers) {
        program.signal(Signal::TERM);
        program.wait().expect(0);
    }
}
