//! Tests with hostile clients. Each request is answered or refused with a reason, the server goes on serving
//! others, and its memory stays within its limits.

use std::io::Write;
use std::net::TcpStream;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use pushpull_messages::graph::{GraphBuilder, GraphSpec, NodeSpec, Op, SessionOp};
use pushpull_messages::id::{Incarnation, NodeId, TaskId, VariableId};
use pushpull_messages::message::{
    Abort, Fed, GraphOpened, Home, Message, OpenGraph, PartRan, Ran, Run, RunKey, RunPart, Transfer,
    Transferred,
};
use pushpull_messages::tensor::{DType, Shape, Tensor, TensorSpec};
use pushpull_messages::variable::{InitializerSpec, VariableSpec};
use pushpull_session::{SessionConfig, payload_of, payload_of_bytes};
use pushpull_transport::CallError;
use pushpull_transport::buffer::Payload;

use crate::client::Client;
use crate::cluster::Cluster;
use crate::fixtures::any_message::any_message;

/// The memory of one client in these tests.
const CLIENT_BYTES_MAX: u64 = 64 << 20;
/// The maximum memory of this process, in which a cluster and its clients run.
const PEAK_BYTES_MAX: u64 = 2 << 30;

fn config() -> SessionConfig {
    SessionConfig { client_bytes_max: CLIENT_BYTES_MAX, bytes_max: 256 << 20, ..SessionConfig::default() }
}

/// Returns the peak memory of this process, in bytes.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) << 10
}

/// Checks that the server serves an honest client.
#[track_caller]
fn check_served(cluster: &Cluster) {
    let client = cluster.client(0);
    let mut g = GraphBuilder::new("honest");
    let x = g.placeholder("x", TensorSpec::f32([2]));
    let y = g.mul(x, x);
    let graph = client.open(&g.finish_session().unwrap()).unwrap();
    let fetched = client.run(graph, &[(x, Tensor::from(vec![3.0f32, 4.0]))], &[y], &[]).unwrap();
    assert_eq!(fetched[0].f32s(), Some(&[9.0, 16.0][..]));
    assert!(peak_bytes() < PEAK_BYTES_MAX, "{} bytes", peak_bytes());
}

#[test]
fn random_messages_of_a_client_are_answered() {
    let cluster = Cluster::new(2, &config());
    let client = std::cell::RefCell::new(cluster.client(0));
    // Heartbeats have no answer.
    let is_request = |message: &Message| {
        !matches!(message, Message::Hello(_) | Message::Welcome(_) | Message::Heartbeat(_))
    };
    let mut runner = TestRunner::new(Config { cases: 600, failure_persistence: None, ..Config::default() });
    let checked = runner.run(&any_message(), |(message, segments)| {
        prop_assume!(is_request(&message));
        let payload = payload_of_bytes(segments.iter().map(Vec::as_slice));
        let answer = client.borrow().call::<Ran>(message, payload);
        match answer {
            Ok(_) | Err(CallError::Refused { .. } | CallError::Unexpected { .. }) => {}
            // The message was not valid, so the server has closed the connection.
            Err(_) => drop(client.replace(cluster.client(0))),
        }
        Ok(())
    });
    checked.unwrap();
    check_served(&cluster);
}

#[test]
fn garbage_closes_only_its_own_connection() {
    let cluster = Cluster::new(1, &config());
    let mut byte = 1u8;
    for length in [1, 27, 28, 1000, 100_000] {
        let mut stream = TcpStream::connect(cluster.address(0)).unwrap();
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            byte = byte.wrapping_mul(141).wrapping_add(3);
            byte
        })
        .take(length)
        .collect();
        // The server may close the connection before it has read everything.
        let _ = stream.write_all(&bytes);
        check_served(&cluster);
    }
}

#[test]
fn requests_of_servers_are_refused_from_clients() {
    let cluster = Cluster::new(1, &config());
    let client = cluster.client(0);
    let run = RunKey { task: TaskId::worker(0), incarnation: Incarnation(7), number: 1 };
    let (feeds, fetches, targets) = Default::default();
    let part = RunPart { run, graph: 1, feeds, fetches, targets };
    let tensor = TensorSpec::f32([1]);
    let transfer = Transfer { run, part: 0, value: 0, tensor };
    let home = Home {
        task: TaskId::worker(0),
        incarnation: Incarnation(7),
        graph: 1,
        client: 1,
        cpus: vec![1],
        read_only: false,
    };
    let open =
        OpenGraph { container: String::new(), soft_placement: false, placement: false, home: Some(home) };
    // The session refuses a kind of message, and the server one of these fields.
    let (session, server) = ("does not accept", "is for servers alone");
    let refusals = [
        (session, Client::refusal(client.call::<PartRan>(part, Payload::EMPTY))),
        (
            session,
            Client::refusal(client.call::<Transferred>(transfer, payload_of([&Tensor::from(vec![1.0f32])]))),
        ),
        (
            session,
            Client::refusal(client.call::<PartRan>(Abort { run, reason: "no".into() }, Payload::EMPTY)),
        ),
        (server, Client::refusal(client.call::<GraphOpened>(open, payload_of_bytes([&b"graph"[..]])))),
    ];
    for (says, refusal) in refusals {
        assert!(refusal.contains(says), "{refusal}");
    }
    check_served(&cluster);
}

/// A graph with a node of each kind that a wrong run can name.
fn small() -> (GraphSpec, [NodeId; 3]) {
    let mut g = GraphBuilder::new("small");
    let x = g.placeholder("x", TensorSpec::f32([2]));
    let batch = g.input("batch", [3]);
    let y = g.mul(x, x);
    let sums = g.relu(batch);
    g.group(&[y, sums]);
    (g.finish_session().unwrap(), [x, batch, y])
}

#[test]
fn wrong_runs_are_refused_with_a_reason() {
    let cluster = Cluster::new(1, &config());
    let client = cluster.client(0);
    let (graph, [x, batch, y]) = small();
    let last = NodeId(graph.nodes.len() as u32 - 1);
    let open = client.open(&graph).unwrap();
    let floats = |count: usize| Tensor::from(vec![1.0f32; count]);
    type Feeds<'a> = &'a [(NodeId, Tensor)];
    let cases: &[(Feeds<'_>, NodeId, &str)] = &[
        (&[(x, floats(3))], y, "was fed with f32[3], expected f32[2]"),
        (&[(x, Tensor::from(vec![1i64, 2]))], y, "was fed with i64[2]"),
        (&[], y, "must be fed with f32[2]"),
        (&[(x, floats(2)), (batch, floats(4))], last, "expected a batch of"),
        (&[(x, floats(2))], NodeId(u32::MAX), "but the graph has"),
        (&[(NodeId(1 << 30), floats(2))], y, "but the graph has"),
        (&[(x, floats(2)), (y, floats(2))], y, "no feed: it is computed"),
    ];
    for (feeds, fetch, reason) in cases {
        let refusal = Client::refusal(client.run(open, feeds, &[*fetch], &[]));
        assert!(refusal.contains(reason), "{refusal}");
    }
    let refusal = Client::refusal(client.run(open + 7, &[], &[y], &[]));
    assert!(refusal.contains("is not open on this connection"), "{refusal}");
    let fed = |tensor| vec![Fed { node: x, tensor }];
    for tensor in [TensorSpec::f32([2]), TensorSpec::f32([1 << 40, 1 << 40]), TensorSpec::f32([1 << 62])] {
        let request = Run { graph: open, number: 9, feeds: fed(tensor), fetches: vec![y], targets: vec![] };
        let refusal = Client::refusal(client.call::<Ran>(request, payload_of_bytes([&[1u8, 2, 3][..]])));
        assert!(refusal.contains("x"), "{refusal}");
    }
    check_served(&cluster);
}

#[test]
fn a_value_fetched_many_times_counts_many_times() {
    let cluster = Cluster::new(1, &config());
    let client = cluster.client(0);
    let mut g = GraphBuilder::new("again");
    let x = g.placeholder("x", TensorSpec::f32([1 << 20]));
    let graph = client.open(&g.finish_session().unwrap()).unwrap();
    let value = Tensor::from(vec![1.0f32; 1 << 20]);
    let refusal = Client::refusal(client.run(graph, &[(x, value)], &[x; 4096], &[]));
    assert!(refusal.contains("of the client are left"), "{refusal}");
    check_served(&cluster);
}

#[test]
fn texts_that_multiply_are_refused() {
    let cluster = Cluster::new(1, &config());
    let client = cluster.client(0);
    let mut g = GraphBuilder::new("texts");
    let text = g.placeholder("text", TensorSpec::new(DType::Text, Shape::scalar()));
    let many = g.placeholder("many", TensorSpec::new(DType::Bool, [1 << 18]));
    let wide = g.select(many, text, text);
    let same = g.equal(text, text);
    let mut chain = text;
    for _ in 0..200 {
        chain = g.select(same, chain, text);
    }
    let graph = client.open(&g.finish_session().unwrap()).unwrap();
    let feeds =
        [(text, Tensor::from("x".repeat(1 << 20).as_str())), (many, Tensor::from(vec![true; 1 << 18]))];
    let refusal = Client::refusal(client.run(graph, &feeds, &[], &[wide]));
    assert!(refusal.contains("the texts of the run take"), "{refusal}");
    let refusal = Client::refusal(client.run(graph, &feeds, &[], &[chain]));
    assert!(refusal.contains("the texts of the run take"), "{refusal}");
    let refusal = Client::refusal(client.run(graph, &feeds, &[text; 100], &[]));
    assert!(refusal.contains("the fetches takes"), "{refusal}");
    check_served(&cluster);
}

#[test]
fn huge_variables_are_refused() {
    let cluster = Cluster::new(1, &config());
    let client = cluster.client(0);
    let mut g = GraphBuilder::new("huge");
    let huge = g.variable("huge", [1 << 20, 1 << 19], InitializerSpec::Zeros);
    let initialize = g.initialize();
    let graph = g.finish_session();
    let graph = graph.map(|graph| client.open(&graph).unwrap());
    if let Ok(graph) = graph {
        for node in [huge, initialize] {
            Client::refusal(client.run(graph, &[], &[node], &[]));
            Client::refusal(client.run(graph, &[], &[], &[node]));
        }
    }
    check_served(&cluster);
}

/// Returns a graph whose nodes have these operations and inputs.
fn raw(nodes: impl IntoIterator<Item = (Op, Vec<u32>)>) -> GraphSpec {
    let mut graph = small().0;
    graph.nodes = nodes
        .into_iter()
        .enumerate()
        .map(|(position, (op, inputs))| {
            let inputs = inputs.into_iter().map(NodeId).collect();
            NodeSpec { name: format!("n{position}"), op, inputs, device: None }
        })
        .collect();
    graph
}

#[test]
fn graphs_with_bad_links_are_refused() {
    let cluster = Cluster::new(1, &config());
    let client = cluster.client(0);
    let identity = || Op::Session(SessionOp::Identity);
    let gradient = Op::Session(SessionOp::Gradient { variable: VariableId(7) });
    let graphs = [
        raw([(identity(), vec![0])]),
        raw([(identity(), vec![1]), (identity(), vec![0])]),
        raw([(identity(), vec![u32::MAX])]),
        raw([(identity(), vec![])]),
        raw([(gradient, vec![0])]),
        raw([(Op::Variable { variable: VariableId(0) }, vec![])]),
    ];
    for graph in graphs {
        let refusal = Client::refusal(client.open(&graph));
        assert!(!refusal.is_empty());
    }
    let request = OpenGraph { container: String::new(), soft_placement: true, placement: true, home: None };
    for bytes in [&b""[..], b"\xc1", b"\xdf\xff\xff\xff\xff", &[0x81; 1 << 16]] {
        let refusal = Client::refusal(client.call::<GraphOpened>(request.clone(), payload_of_bytes([bytes])));
        assert!(refusal.contains("cannot be decoded"), "{refusal}");
    }
    check_served(&cluster);
}

#[test]
fn a_graph_of_a_million_variables_is_refused() {
    let cluster = Cluster::new(1, &config());
    let client = cluster.client(0);
    let count = 1_000_000;
    let mut graph = raw((0..count).map(|at| (Op::Variable { variable: VariableId(at) }, vec![])));
    let mut g = GraphBuilder::new("one");
    g.variable("v", [1], InitializerSpec::Zeros);
    let one = g.finish_session().unwrap().variables.remove(0);
    graph.variables = (0..count).map(|at| VariableSpec { name: format!("v{at}"), ..one.clone() }).collect();
    let refusal = Client::refusal(client.open(&graph));
    // The client has less memory than the graph takes. With more, it has too many nodes.
    assert!(refusal.contains("the graph and its nodes need"), "{refusal}");
    drop((client, cluster));
    let cluster = Cluster::new(1, &SessionConfig::default());
    let refusal = Client::refusal(cluster.client(0).open(&graph));
    assert!(refusal.contains("1000000 nodes"), "{refusal}");
    check_served(&cluster);
}

#[test]
fn large_graphs_are_planned_or_refused_in_time() {
    let cluster = Cluster::new(2, &config());
    let client = cluster.client(0);
    let began = std::time::Instant::now();
    // A chain, whose nodes are on the host and in the engine of two tasks in turn.
    let devices = ["/job:worker/task:0", "/job:worker/task:1"].map(|text| text.parse().unwrap());
    let nodes = 1 << 14;
    let mut chain = raw((0..nodes).map(|at: u32| match at {
        0 => (Op::Constant { value: 1.0 }, vec![]),
        at if at % 4 < 2 => (Op::Session(SessionOp::Identity), vec![at - 1]),
        at => (Op::Unary(pushpull_messages::graph::UnaryOp::Relu), vec![at - 1]),
    }));
    for (position, node) in chain.nodes.iter_mut().enumerate() {
        node.device = Some(devices[position % 2]);
    }
    let graph = client.open(&chain).unwrap();
    let fetched = client.run(graph, &[], &[NodeId(nodes - 1)], &[]).unwrap();
    assert_eq!(fetched[0].f32s(), Some(&[1.0][..]));
    // Many gradients of one loss, and many losses.
    let mut g = GraphBuilder::new("gradients");
    let variable = g.variable("v", [1], InitializerSpec::Zeros);
    let mut loss = g.l2_loss(variable);
    let mut gradients = Vec::new();
    for _ in 0..2000 {
        gradients.push(g.gradient(loss, variable));
        loss = g.mul(loss, loss);
    }
    let graph = client.open(&g.finish_session().unwrap()).unwrap();
    let refusal = Client::refusal(client.run(graph, &[], &[], &gradients));
    assert!(refusal.contains("losses"), "{refusal}");
    assert!(client.run(graph, &[], &gradients[..10], &[]).is_ok());
    assert!(began.elapsed() < std::time::Duration::from_secs(60), "{:?}", began.elapsed());
    check_served(&cluster);
}

#[test]
fn many_plans_and_graphs_stay_within_the_memory() {
    let cluster = Cluster::new(1, &config());
    let client = cluster.client(0);
    let graph = raw((0..5000).map(|at: u32| match at {
        0 => (Op::Constant { value: 1.0 }, vec![]),
        at => (Op::Session(SessionOp::Identity), vec![at - 1]),
    }));
    let mut refused = None;
    for _ in 0..70 {
        match client.open(&graph) {
            Ok(open) => {
                for last in (4900..4932).map(NodeId) {
                    client.run(open, &[], &[last], &[]).unwrap();
                }
            }
            Err(error) => refused = Some(error.to_string()),
        }
    }
    let refused = refused.unwrap();
    assert!(refused.contains("left") || refused.contains("maximum"), "{refused}");
    check_served(&cluster);
}
