//! Tests of the stages of a graph.

use proptest::prelude::*;

use super::super::{GraphBuilder, Op};
use crate::id::VariableId;
use crate::variable::InitializerSpec;

fn device(stage: u32) -> String {
    format!("/job:worker/task:{stage}")
}

#[test]
fn operations_are_in_the_stages_that_they_request() {
    let mut g = GraphBuilder::new("g");
    let x = g.device(&device(3), |g| g.input("x", [2]));
    let here = g.variable("here", [2], InitializerSpec::Zeros);
    let pinned = g.device(&device(1), |g| g.variable("pinned", [2], InitializerSpec::Zeros));
    let shared = g.variable("shared", [2], InitializerSpec::Zeros);
    let first = g.mul(x, here);
    let second = g.device("/task:2/cpu:0", |g| g.mul(first, shared));
    let third = g.device(&device(1), |g| {
        let sum = g.add(second, shared);
        g.add(sum, pinned)
    });
    let loss = g.device("/job:worker/device:CPU:0", |g| g.l2_loss(third));
    let graph = g.finish(loss, &[]).unwrap();
    let stages = graph.stages();
    assert_eq!(stages.count(), 3, "an input is read by stage 0, whatever it requests");
    let of = |name: &str| stages.nodes()[graph.nodes.iter().position(|node| node.name == name).unwrap()];
    assert_eq!(["x", "mul", "mul_1", "add", "add_1"].map(of), [0, 0, 2, 1, 1]);
    // Without a request, a variable is owned by the first stage that reads it.
    assert_eq!(stages.owners(), [0, 1, 1]);
    assert_eq!(stages.owned(1).collect::<Vec<_>>(), [VariableId(1), VariableId(2)]);
    assert_eq!(stages.nodes().last(), Some(&0));
}

#[test]
fn a_graph_without_tasks_has_one_stage() {
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", [2]);
    let loss = g.device("/job:worker/device:CPU:1", |g| g.l2_loss(x));
    assert_eq!(g.finish(loss, &[]).unwrap().stages().count(), 1);
}

proptest! {
    #[test]
    fn variables_are_where_their_nodes_are(requests in prop::collection::vec(0u32..5, 4)) {
        let mut g = GraphBuilder::new("g");
        let mut x = g.input("x", [2]);
        for (layer, &request) in requests.iter().enumerate() {
            let kernel = g.variable(&format!("kernel{layer}"), [2, 2], InitializerSpec::Zeros);
            x = g.device(&device(request), |g| g.matmul(x, kernel));
        }
        let loss = g.l2_loss(x);
        let graph = g.finish(loss, &[]).unwrap();
        let stages = graph.stages();
        prop_assert_eq!(stages.owners(), &requests[..]);
        prop_assert_eq!(stages.count(), requests.iter().max().unwrap() + 1);
        for (node, &stage) in graph.nodes.iter().zip(stages.nodes()) {
            if let Op::Variable { variable } = node.op {
                prop_assert_eq!(stage, stages.owner(variable));
            }
        }
    }
}
