//! Tests of clients and tasks that end while runs are in progress: all parts of the run end, and what the
//! run and its graph held is free again.

use pushpull_messages::graph::{GraphBuilder, GraphSpec};
use pushpull_messages::id::NodeId;
use pushpull_messages::tensor::{DType, Tensor, TensorSpec};
use pushpull_messages::variable::InitializerSpec;
use pushpull_session::SessionConfig;

use crate::client::Client;
use crate::cluster::Cluster;
use crate::gates::until;

/// A graph whose part on the home task waits for a gate on another task.
struct Gated {
    graph: GraphSpec,
    sum: NodeId,
    /// A node that only needs the home task, but both of its parts: its values are too large to be computed
    /// at once.
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
        let large = g.variable("large", [1 << 15], InitializerSpec::Zeros);
        let alone = g.mul(large, large);
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
fn a_small_run_needs_no_thread() {
    let cluster = Cluster::new(2, &narrow());
    let gated = Gated::new(1);
    let mut g = GraphBuilder::new("small");
    let x = g.placeholder("x", TensorSpec::f32([2]));
    // The values go from the engine to the host and back, and so does the order of the graph.
    let doubled = g.add(x, x);
    let integers = g.cast(doubled, DType::I64);
    let squares = g.mul(integers, integers);
    let floats = g.cast(squares, DType::F32);
    let sum = g.add(floats, doubled);
    let count = g.variable_of("count", [2], DType::I64, InitializerSpec::Zeros);
    let summed = g.cast(sum, DType::I64);
    let counted = g.assign_add(count, summed);
    let counted = g.cast(counted, DType::F32);
    let halves = g.scale(counted, 0.5);
    let small = g.finish_session().unwrap();
    let (client, other) = (cluster.client(0), cluster.client(0));
    let open = other.open(&small).unwrap();
    let run = || {
        let feeds = [(x, Tensor::from(vec![1.0f32, 2.0]))];
        let fetched = other.run(open, &feeds, &[squares, halves], &[]).unwrap();
        assert_eq!(fetched[0].i64s(), Some(&[4, 16][..]));
        fetched[1].f32s().unwrap().to_vec()
    };
    // The first run is planned, which takes threads.
    assert_eq!(run(), [3.0, 10.0]);
    let graph = client.open(&gated.graph).unwrap();
    cluster.variables(1).gate.close();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.run(graph, &[], &[gated.sum], &[]));
        cluster.variables(1).gate.reached();
        let graph = other.open(&gated.graph).unwrap();
        let refused = Client::refusal(other.run(graph, &[], &[gated.alone], &[]));
        assert!(refused.contains("parts of runs"), "{refused}");
        assert_eq!([run(), run()], [[6.0, 20.0], [9.0, 30.0]]);
        cluster.variables(1).gate.open();
        waiting.join().unwrap().unwrap();
    });
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
