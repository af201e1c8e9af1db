//! Tests of clients that ask for more than a server has: it refuses them with the reason, stays within its
//! memory, and serves the others.

use pushpull::{DType, GraphBuilder, GraphSpec, InitializerSpec, NodeId, Session, Tensor};

use crate::harness::Servers;

/// The number of variables that the client asks for.
const VARIABLES: usize = 1_000_000;
/// The number of variables of one graph.
const PART: usize = 20_000;
/// The memory of variables, and of graphs and runs, of one client, in MiB.
const CLIENT_MIB: u64 = 512;
/// The maximum memory of the server, in MiB: both limits of the client, and what decoding a graph takes
/// besides.
const PEAK_MIB_MAX: u64 = 1280;

/// Returns a graph that needs this number of variables of one element, and the node that needs them all.
fn tiny(first: usize, count: usize) -> (GraphSpec, NodeId) {
    let mut g = GraphBuilder::new("tiny");
    let variables: Vec<NodeId> = (first..first + count)
        .map(|number| g.variable_of(&format!("v{number}"), [], DType::I64, InitializerSpec::Zeros))
        .collect();
    let all = g.group(&variables);
    (g.finish_session().expect("a graph"), all)
}

/// Returns the peak memory of a process, in MiB.
fn peak_mib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("a running process");
    let line = status.lines().find(|line| line.starts_with("VmHWM")).expect("the peak of the memory");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") >> 10
}

/// Checks that another client is served.
#[track_caller]
fn check_served(session: &Session) {
    let mut g = GraphBuilder::new("honest");
    let (x, count) = (g.value(20i64), g.variable_of("count", [], DType::I64, InitializerSpec::Zeros));
    let counted = g.assign(count, x);
    let graph = g.finish_session().expect("a graph");
    assert_eq!(session.run(&graph, &[], &[counted]).expect("served"), [Tensor::from(20i64)]);
}

#[test]
fn a_million_tiny_variables_stay_within_the_memory() {
    let flags = ["--client-memory-limit", &CLIENT_MIB.to_string()];
    let mut servers = Servers::start(&[("local", 1)], &flags);
    let (greedy, honest) = (servers.session("local/0"), servers.session("local/0"));
    // Each graph fits, but the variables stay.
    let (mut held, mut refusals) = (0, Vec::new());
    for first in (0..VARIABLES).step_by(PART) {
        let (graph, all) = tiny(first, PART);
        match greedy.run_targets(&graph, &[], &[all]) {
            Ok(()) => held += PART,
            Err(error) => refusals.push(error.to_string()),
        }
    }
    assert!(held > 0 && !refusals.is_empty(), "{held} variables are held");
    for refused in refusals {
        assert!(refused.contains("variable 'v") && refused.contains("--client-memory-limit"), "{refused}");
    }
    check_served(&honest);
    let peak = peak_mib(servers.program("local/0").id());
    assert!(peak < PEAK_MIB_MAX, "{peak} MiB");
}
