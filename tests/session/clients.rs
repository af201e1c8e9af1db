//! Tests of several clients: shared and separate containers, results that are not mixed up, and clients that
//! cancel their runs or leave.

use std::time::{Duration, Instant};

use pushpull::{DType, GraphBuilder, InitializerSpec, Session};
use rustix::process::Signal;

use crate::harness::{Long, Program, Servers, example_called};

/// Runs the script of a client: adds 1 to a variable on the ps this number of times. Returns the last value.
fn count(session: &Session, runs: u32) -> i64 {
    let mut g = GraphBuilder::new("count");
    let counter = g.device("/job:ps", |g| g.variable_of("c", [], DType::I64, InitializerSpec::Zeros));
    let one = g.value(1i64);
    let counted = g.assign_add(counter, one);
    let graph = g.finish_session().unwrap();
    let mut last = 0;
    for _ in 0..runs {
        last = session.run(&graph, &[], &[counted]).unwrap()[0].i64s().unwrap()[0];
    }
    last
}

#[test]
fn clients_of_one_container_share_its_variables() {
    let servers = Servers::start(&[("ps", 1), ("worker", 2)], &[]);
    let run = |worker: &str, container: &str| count(&servers.session_in(worker, container), 100);
    let last = std::thread::scope(|scope| {
        let clients = [("worker/0", "shared"), ("worker/1", "shared"), ("worker/1", "own")];
        let threads = clients.map(|(worker, container)| scope.spawn(move || run(worker, container)));
        threads.map(|thread| thread.join().unwrap())
    });
    assert_eq!(last[0].max(last[1]), 200);
    assert_eq!(last[2], 100);
    assert_eq!(servers.session("worker/0").reset(&["shared"]).unwrap(), 1);
    assert_eq!([run("worker/0", "shared"), run("worker/0", "own")], [100, 200]);
}

#[test]
fn results_go_to_the_client_that_asked() {
    let servers = Servers::start(&[("worker", 2)], &[]);
    let client = |number: i64| {
        let session = servers.session("worker/0");
        let mut g = GraphBuilder::new("own");
        let own = g.device("/job:worker/task:1", |g| g.value(number));
        let fed = g.placeholder("fed", pushpull::TensorSpec::new(DType::I64, [3]));
        let sum = g.add(own, fed);
        let graph = g.finish_session().unwrap();
        for step in 0..100 {
            let value = [step, step * number, -number];
            let expected = value.map(|element| element + number);
            let got = session.run(&graph, &[(fed, value.into())], &[sum]).unwrap();
            assert_eq!(got[0].i64s().unwrap(), expected);
        }
    };
    std::thread::scope(|scope| {
        [1000, 2000, 3000].into_iter().for_each(|number| drop(scope.spawn(move || client(number))));
    });
}

#[test]
fn a_cancelled_run_ends_at_once() {
    let servers = Servers::start(&[("worker", 2)], &[]);
    let [near, far] = ["/job:worker/task:0", "/job:worker/task:1"];
    let long = Long::new(near, far, 4000);
    let (session, other) = (servers.session("worker/0"), servers.session("worker/0"));
    std::thread::scope(|scope| {
        let run = scope.spawn(|| long.run(&session));
        long.wait_until_begun(&other, 1);
        session.cancel().unwrap();
        let cancelled = Instant::now();
        let error = run.join().unwrap().unwrap_err();
        assert!(error.contains("the client has cancelled the run"), "{error}");
        assert!(cancelled.elapsed() < Duration::from_secs(5), "{:?}", cancelled.elapsed());
    });
    // The session is still of use.
    assert_eq!(Long::new(far, near, 1).run(&session), Ok(Long::sum()));
}

#[test]
fn the_runs_of_a_client_that_leaves_end() {
    let mut servers = Servers::start(&[("ps", 1), ("worker", 1)], &["--drain-s=60"]);
    let mut command = example_called("in_graph");
    command.args(["--steps=1000000", "--target", &servers.target("worker/0")]);
    let mut client = Program::start(servers.dir(), "client", &mut command);
    let session = servers.session("worker/0");
    let changes = || {
        let described = session.describe().unwrap();
        let containers = described.tasks.iter().flat_map(|task| &task.containers);
        containers.flat_map(|container| &container.variables).map(|variable| variable.changes).sum::<u64>()
    };
    crate::harness::wait_until("training", crate::harness::PATIENCE, || (changes() > 100).then_some(()));
    client.signal(Signal::INT);
    client.wait().expect(-2);
    // Runs that had not ended would hold up the servers for a minute.
    for task in ["worker/0", "ps/0"] {
        servers.program(task).signal(Signal::TERM);
        servers.program(task).wait_within(Duration::from_secs(10)).expect(0);
    }
}
