//! Faults of a whole graph: each is refused, and the message names what is wrong.

use super::*;
use crate::id::{NodeId, VariableId};
use crate::tensor::TensorSpec;
use crate::variable::VariableSpec;

#[test]
fn a_job_file_says_the_same_graph() {
    let graph = classifier();
    let json = serde_json::to_string(&graph).unwrap();
    assert_eq!(serde_json::from_str::<GraphSpec>(&json).unwrap(), graph);
    let bytes = rmp_serde::to_vec_named(&graph).unwrap();
    assert_eq!(rmp_serde::from_slice::<GraphSpec>(&bytes).unwrap(), graph);
}

#[test]
fn a_digest_tells_graphs_apart() {
    let graph = classifier();
    assert_eq!(graph.digest(), classifier().digest());
    let mut other = graph.clone();
    other.variables[0].trainable = false;
    assert_ne!(graph.digest(), other.digest());
}

/// Fields that are left out must not let another stand in their place.
#[test]
fn a_digest_is_of_named_fields() {
    let graph = classifier();
    let named = rmp_serde::to_vec_named(&graph).unwrap();
    assert_eq!(graph.digest(), crc32c::crc32c(&named));
}

#[test]
fn every_fault_is_refused_with_the_node_named() {
    type Change<'a> = &'a dyn Fn(&mut GraphSpec);
    let at = |name: &str| classifier().find(name).unwrap().index();
    let faults: [(Change<'_>, &str); _] = [
        (&|g| g.nodes[at("relu")].inputs[0] = NodeId(9), "(relu 'relu') takes node 9"),
        (&|g| g.nodes[at("relu")].inputs[0] = NodeId(at("relu") as u32), "does not come before it"),
        (&|g| g.nodes[at("relu")].inputs[0] = NodeId(u32::MAX), "does not come before it"),
        (&|g| g.nodes[at("relu")].inputs.clear(), "(relu 'relu') takes 1 inputs, and has 0"),
        (
            &|g| g.nodes[at("mat_mul")].inputs.swap(0, 1),
            "(mat_mul 'mat_mul') expects f32 [.., m, k] and [.., k, n]",
        ),
        (&|g| g.nodes[at("reshape")].op = Op::Reshape { shape: [5].into() }, "(reshape 'reshape')"),
        (
            &|g| g.nodes[at("dense1/bias")].op = Op::Variable { variable: VariableId(7) },
            "(variable 'dense1/bias') names variable 7, and the graph has 3",
        ),
        (&|g| g.nodes[at("relu")].name = "bias_add".into(), "node 'bias_add' is there twice"),
        (&|g| g.nodes[at("relu")].name = "a\nb".into(), "control characters"),
        (&|g| g.nodes[at("relu")].name = String::new(), "has a name that is empty"),
        (&|g| g.nodes[at("relu")].name = "x".repeat(257), "longer than 256 bytes"),
        (&|g| g.name.clear(), "graph 0 has a name that is empty"),
        (&|g| g.metrics[0].name.clear(), "metric 0 has a name that is empty"),
        (&|g| g.metrics.push(g.metrics[0].clone()), "metric 'accuracy' is there twice"),
        (
            &|g| g.metrics = vec![g.metrics[0].clone(); METRICS_MAX + 1],
            "a graph may have at most 1024 metrics, and has 1025",
        ),
        (
            &|g| g.variables = vec![g.variables[0].clone(); NODES_MAX + 1],
            "a graph may have at most 65536 variables, and has 65537",
        ),
        (&|g| g.variables[1].name = "dense1/kernel".into(), "variable 'dense1/kernel' is there twice"),
        (&|g| g.variables[1].name = "a b".into(), "variable name 'a b' is not valid"),
        (&|g| g.variables[1].shape = [3].into(), "(bias_add 'bias_add') expects"),
        (&|g| g.variables[1].shape = [0].into(), "'dense1/bias' has shape [0]"),
        (&|g| g.variables[1].shape = [1; 9].into(), "'dense1/bias' has shape"),
        (&|g| g.variables.iter_mut().for_each(|v| v.shape = [1 << 39].into()), "'dense2/kernel' has shape"),
        (&|g| g.loss = NodeId(at("relu") as u32), "the loss must be a node that gives an f32 scalar"),
        (&|g| g.loss = NodeId(99), "node 99 is not in the graph"),
        (&|g| g.metrics[0].node = NodeId(0), "metric 'accuracy' must be"),
        (&|g| g.metrics[0].node = NodeId(u32::MAX), "is not in the graph"),
        (
            &|g| g.nodes[at("features")].op = Op::Input { example: TensorSpec::f32([1 << 31, 3]) },
            "may have at most",
        ),
        (
            &|g| {
                let unused = VariableSpec { name: "unused".into(), ..g.variables[0].clone() };
                g.variables.push(unused);
            },
            "variable 'unused' is used by no node",
        ),
    ];
    for (change, expected) in faults {
        let mut graph = classifier();
        change(&mut graph);
        let message = graph.validate(2).expect_err("a fault was taken").to_string();
        assert!(message.contains(expected), "expected '{expected}' in: {message}");
    }
}

#[test]
fn counts_for_an_auc_are_a_metric_and_no_loss() {
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
    assert!(message.contains("the loss must be a node that gives an f32 scalar"), "{message}");
}
