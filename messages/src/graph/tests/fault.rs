//! Tests of whole graphs: a graph round-trips, different graphs have different digests, and each fault is
//! refused with an error that names it.

use super::*;
use crate::id::{NodeId, VariableId};
use crate::tensor::TensorSpec;
use crate::variable::VariableSpec;

#[test]
fn a_graph_round_trips() {
    let graph = classifier();
    let json = serde_json::to_string(&graph).unwrap();
    assert_eq!(serde_json::from_str::<GraphSpec>(&json).unwrap(), graph);
    let bytes = rmp_serde::to_vec_named(&graph).unwrap();
    assert_eq!(rmp_serde::from_slice::<GraphSpec>(&bytes).unwrap(), graph);
}

#[test]
fn different_graphs_have_different_digests() {
    let graph = classifier();
    assert_eq!(graph.digest(), classifier().digest());
    let mut other = graph.clone();
    other.variables[0].trainable = false;
    assert_ne!(graph.digest(), other.digest());
}

/// Checks that a digest includes the names of fields. Without them, graphs that omit different fields could
/// have the same digest.
#[test]
fn a_digest_includes_the_names_of_fields() {
    let graph = classifier();
    let named = rmp_serde::to_vec_named(&graph).unwrap();
    assert_eq!(graph.digest(), crc32c::crc32c(&named));
}

#[test]
fn every_fault_is_refused_by_name() {
    type Change<'a> = &'a dyn Fn(&mut GraphSpec);
    let at = |name: &str| classifier().find(name).unwrap().index();
    let faults: [(Change<'_>, &str); _] = [
        (&|g| g.nodes[at("relu")].inputs[0] = NodeId(9), "(relu 'relu') takes node 9"),
        (&|g| g.nodes[at("relu")].inputs[0] = NodeId(at("relu") as u32), "does not come before it"),
        (&|g| g.nodes[at("relu")].inputs[0] = NodeId(u32::MAX), "does not come before it"),
        (&|g| g.nodes[at("relu")].inputs.clear(), "(relu 'relu') has 0 inputs, expected 1"),
        (
            &|g| g.nodes[at("mat_mul")].inputs.swap(0, 1),
            "(mat_mul 'mat_mul') expects f32 [.., m, k] and [.., k, n]",
        ),
        (&|g| g.nodes[at("reshape")].op = Op::Reshape { shape: [5].into() }, "(reshape 'reshape')"),
        (
            &|g| g.nodes[at("dense1/bias")].op = Op::Variable { variable: VariableId(7) },
            "(variable 'dense1/bias') names variable 7, but the graph has 3",
        ),
        (&|g| g.nodes[at("relu")].name = "bias_add".into(), "node 'bias_add' is defined twice"),
        (&|g| g.nodes[at("relu")].name = "a\nb".into(), "control characters"),
        (&|g| g.nodes[at("relu")].name = String::new(), "has an invalid name"),
        (&|g| g.nodes[at("relu")].name = "x".repeat(257), "expected 1 to 256 bytes"),
        (&|g| g.name.clear(), "graph 0 has an invalid name"),
        (&|g| g.metrics[0].name.clear(), "metric 0 has an invalid name"),
        (&|g| g.metrics.push(g.metrics[0].clone()), "metric 'accuracy' is defined twice"),
        (
            &|g| g.metrics = vec![g.metrics[0].clone(); METRICS_MAX + 1],
            "the graph has 1025 metrics, expected at most 1024",
        ),
        (
            &|g| g.variables = vec![g.variables[0].clone(); NODES_MAX + 1],
            "the graph has 65537 variables, expected at most 65536",
        ),
        (&|g| g.variables[1].name = "dense1/kernel".into(), "variable 'dense1/kernel' is defined twice"),
        (&|g| g.variables[1].name = "a b".into(), "variable name 'a b' is not valid"),
        (&|g| g.variables[1].shape = [3].into(), "(bias_add 'bias_add') expects"),
        (&|g| g.variables[1].shape = [0].into(), "'dense1/bias' has shape [0]"),
        (&|g| g.variables[1].shape = [1; 9].into(), "'dense1/bias' has shape"),
        (&|g| g.variables.iter_mut().for_each(|v| v.shape = [1 << 39].into()), "'dense2/kernel' has shape"),
        (&|g| g.loss = NodeId(at("relu") as u32), "the loss must be a node that returns an f32 scalar"),
        (&|g| g.loss = NodeId(99), "node 99 is not in the graph"),
        (&|g| g.metrics[0].node = NodeId(0), "metric 'accuracy' must be"),
        (&|g| g.metrics[0].node = NodeId(u32::MAX), "is not in the graph"),
        (
            &|g| g.nodes[at("features")].op = Op::Input { example: TensorSpec::f32([1 << 31, 3]) },
            "expected at most 4294967296 elements",
        ),
        (
            &|g| {
                let unused = VariableSpec { name: "unused".into(), ..g.variables[0].clone() };
                g.variables.push(unused);
            },
            "variable 'unused' is not used by any node",
        ),
    ];
    for (change, expected) in faults {
        let mut graph = classifier();
        change(&mut graph);
        let message = graph.validate(2).expect_err("a fault was accepted").to_string();
        assert!(message.contains(expected), "expected '{expected}' in: {message}");
    }
}

#[test]
fn counts_for_an_auc_are_a_metric_but_not_a_loss() {
    let graph = |loss_is_auc: bool| {
        let mut g = GraphBuilder::new("auc");
        let (x, y) = (g.input("x", []), g.labels("y"));
        let auc = g.auc(x, y);
        let labels = g.to_float(y);
        let loss = g.sigmoid_cross_entropy(x, labels);
        g.finish(if loss_is_auc { auc } else { loss }, &[("auc", auc)])
    };
    let good = graph(false).unwrap();
    assert_eq!(good.metric_kind(good.metrics[0].node), MetricKind::Auc { bins: 4096 });
    assert_eq!(good.metric_kind(good.loss), MetricKind::Mean);
    let message = graph(true).unwrap_err().to_string();
    assert!(message.contains("the loss must be a node that returns an f32 scalar"), "{message}");
}
