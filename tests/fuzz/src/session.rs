//! The body of the target `session`: decodes bytes as the graph of a session, validates it, infers what the
//! first byte selects, and cuts the graph into two parts. No input may cause a panic. Variables and runs
//! belong to servers, which the tests of `worker/session` attack.

use pushpull_engine::{Cut, Parts};
use pushpull_kernels::cpu::Threads;
use pushpull_messages::graph::{GraphSpec, Op};
use pushpull_messages::id::NodeId;
use pushpull_messages::message::{decode_graph, encode_graph};
use pushpull_messages::tensor::DType;

use crate::corpus::Form;
use crate::graphs::draw_graph;
use crate::seeds::session_graphs;
use crate::target::{Class, Target};

/// The maximum number of nodes. With this bound an input takes milliseconds.
const NODES_MAX: usize = 256;

pub(crate) const TARGET: Target = Target {
    name: "session",
    class: Class::State,
    about: &[
        "messages/src/graph/arity.rs",
        "messages/src/graph/device_scopes.rs",
        "messages/src/graph/infer",
        "messages/src/graph/op.rs",
        "messages/src/graph/session.rs",
        "messages/src/graph/session_op.rs",
        "messages/src/graph/spec.rs",
        "worker/engine/src/cut",
        "worker/engine/src/autodiff.rs",
        "worker/engine/src/lower.rs",
    ],
    check: |bytes| check(bytes) as usize,
    stages: &["no graph", "not valid", "valid", "inferred", "compiled"],
    seeds,
    form: Form::MessagePack,
    draw: draw_graph,
    ..Target::USUAL
};

/// How far an input came before it was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reached {
    /// It is no graph.
    Bytes,
    /// It is a graph that is not valid, or is too large.
    Graph,
    /// It is a valid graph, but what was selected cannot be inferred.
    Valid,
    /// The shapes were inferred, but the graph cannot be cut.
    Inferred,
    /// All parts were compiled.
    Compiled,
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    let encoded = |graph: &GraphSpec| (graph.name.clone(), [&[1], &encode_graph(graph)[..]].concat());
    session_graphs().iter().map(encoded).collect()
}

/// Checks one input.
///
/// # Panics
/// If the graph has a fault that no check has found.
fn check(bytes: &[u8]) -> Reached {
    let Some((&how, rest)) = bytes.split_first() else { return Reached::Bytes };
    let Ok(graph) = decode_graph(rest) else { return Reached::Bytes };
    let count = graph.nodes.len();
    if count == 0 || count > NODES_MAX || graph.validate_session().is_err() {
        return Reached::Graph;
    }
    // Floats that are no numbers differ from themselves, so the bytes are compared.
    let written = encode_graph(&graph);
    let again = decode_graph(&written).expect("what was written can be read");
    assert!(encode_graph(&again) == written, "another graph was read than was written");
    let last = NodeId((count - 1 - usize::from(how / 4) % count) as u32);
    let needed = graph.needed(&[last]);
    let Ok(tensors) = graph.infer_session(1 + usize::from(how % 4), &needed) else { return Reached::Valid };
    let given = |op: &Op| matches!(op, Op::Session(_) | Op::Input { .. } | Op::Variable { .. });
    let given: Vec<bool> = graph.nodes.iter().map(|node| given(&node.op)).collect();
    let parts: Vec<Option<u32>> =
        tensors.iter().enumerate().map(|(at, tensor)| tensor.as_ref().map(|_| at as u32 % 2)).collect();
    let floats = tensors[last.index()].as_ref().is_some_and(|tensor| tensor.dtype == DType::F32);
    let wanted: &[(NodeId, u32)] = if floats && !given[last.index()] { &[(last, 0)] } else { &[] };
    let cut = Cut {
        graph: &graph,
        tensors: &tensors,
        parts: &parts,
        parts_count: 2,
        given: &given,
        wanted,
        gradients: &[],
        training: how % 2 == 1,
    };
    let Ok(parts) = Parts::new(cut) else { return Reached::Inferred };
    let compiled = (0..2).all(|part| parts.compile(part, Threads::One).is_ok());
    if compiled { Reached::Compiled } else { Reached::Inferred }
}
