//! Tests of clients and tasks that end while runs are in progress: all parts of the run end, and what the
//! run and its graph held is free again.

use pushpull_messages::graph::{GraphBuilder, GraphSpec};
use pushpull_messages::id::NodeId;
use pushpull_messages::tensor::Tensor;
use pushpull_messages::variable::InitializerSpec;
use pushpull_session::SessionConfig;

use crate::client::Client;
use crate::cluster::Cluster;
use crate::gates::until;

/// A graph whose part on the home task waits for a gate on another task.
struct Gated {
    graph: GraphSpec,
    sum: NodeId,
    /// A node that only needs the home task, but both of its parts.
    alone: NodeId,
}

impl Gated {
    fn new(task: usize) -> Self {
        let mut g = GraphBuilder::new("gated");
        let gate = g
            .device(&format!("/job:worker/task:{task}"), |g| g.variable("gate", [2], InitializerSpec::Zeros));
        let own = g.variable("own", [2], InitializerSpec::Zeros);
        let doubled = g.add(own, own);
        let sum = g.add(doubled, gate);
        let alone = g.mul(doubled, doubled);
        Self { graph: g.finish_session().unwrap(), sum, alone }
    }
}

/// Returns settings with which a task runs one run of two parts at a time.
fn narrow() -> SessionConfig {
    SessionConfig { threads_max: 4, ..SessionConfig::default() }
}

#[test]
fn a_run_whose_task_dies_ends_everywhere() {
    let mut cluster = Cluster::new(3, &narrow());
    let gated = Gated::new(1);
    let client = cluster.client(0);
    let graph = client.open(&gated.graph).unwrap();
    cluster.variables(1).gate.close();
    let address = cluster.address(0).to_owned();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| client.run(graph, &[], &[gated.sum], &[]));
        cluster.variables(1).gate.reached();
        let other = Client::new(&address);
        let graph = other.open(&gated.graph).unwrap();
        let refused = Client::refusal(other.run(graph, &[], &[gated.alone], &[]));
        assert!(refused.contains("4 parts of runs on this task"), "{refused}");
        cluster.kill(1);
        let error = Client::refusal(run.join().unwrap());
        assert!(error.contains("worker/1"), "{error}");
        until(|| other.run(graph, &[], &[gated.alone], &[]));
    });
    cluster.variables(1).gate.open();
}

#[test]
fn graphs_of_a_lost_client_are_closed_on_all_tasks() {
    let client_bytes_max = 4 << 20;
    // Each task has memory for one of the graphs.
    let config = SessionConfig { client_bytes_max, bytes_max: 5 << 20, ..SessionConfig::default() };
    let cluster = Cluster::new(2, &config);
    let mut g = GraphBuilder::new("large");
    let value = Tensor::new([3 << 20], vec![1u8; 3 << 20]).unwrap();
    let first = g.device("/job:worker/task:1", |g| {
        g.value(value);
        let first = g.value(2i64);
        g.mul(first, first)
    });
    let graph = g.finish_session().unwrap();
    let begin = |client: &Client| {
        let graph = client.open(&graph)?;
        client.run(graph, &[], &[first], &[])
    };
    let client = cluster.client(0);
    assert_eq!(begin(&client).unwrap()[0].i64s(), Some(&[4][..]));
    let other = cluster.client(0);
    let refused = Client::refusal(begin(&other));
    assert!(refused.contains("of the task are left"), "{refused}");
    drop(client);
    until(|| begin(&other));
}

#[test]
fn a_lost_client_ends_its_runs() {
    let cluster = Cluster::new(2, &narrow());
    let gated = Gated::new(1);
    let gate = &cluster.variables(1).gate;
    gate.close();
    let other = cluster.client(0);
    let graph = other.open(&gated.graph).unwrap();
    std::thread::scope(|scope| {
        let client = cluster.client(0);
        let (gated, end) = (&gated, tokio_util::sync::CancellationToken::new());
        let ended = end.clone();
        scope.spawn(move || {
            let graph = client.open(&gated.graph).unwrap();
            client.run_until(graph, &[gated.sum], ended.cancelled());
        });
        gate.reached();
        let refused = Client::refusal(other.run(graph, &[], &[gated.alone], &[]));
        assert!(refused.contains("parts of runs"), "{refused}");
        end.cancel();
    });
    // The gate is still closed, but the home task's parts have ended.
    until(|| other.run(graph, &[], &[gated.alone], &[]));
    gate.open();
    until(|| other.run(graph, &[], &[gated.sum], &[]));
}
