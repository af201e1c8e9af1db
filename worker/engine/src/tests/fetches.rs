//! Tests of fetches: they change no bit of a step's loss and gradients (A), and cost nothing in steps that
//! do not request them (B). `fetch.rs` defines these properties.

use proptest::prelude::*;
use pushpull_kernels::cpu::Threads;
use pushpull_messages::graph::{GraphBuilder, GraphSpec, Padding, Stride, UnaryOp};
use pushpull_messages::id::NodeId;
use pushpull_messages::tensor::DType;
use pushpull_messages::variable::InitializerSpec;

use super::gradients::any_choices;
use super::interpreter::Pass;
use super::random_graph::RandomGraph;
use super::trial::{Bounds, Trial, TrialGradients};
use crate::memory::Place;
use crate::{Executor, Feed, Fetch, Groups, Program};

const GROUPS: [Groups; 3] = [Groups::only(0), Groups::only(1), Groups::only(6)];

/// Runs a step for each set of groups in `asked`, all in the same memory. Returns a pair for each step. The
/// first part of a pair contains the bits of the gradients and the loss, and the order in which the
/// gradients were complete. The second part contains the values that the step fetched.
fn run(trial: &Trial, fetches: &[Fetch], asked: &[Groups]) -> Vec<(Vec<u32>, Vec<f32>)> {
    let program =
        Program::training_with(&trial.graph, trial.batch.examples, &trial.columns, Threads::One, fetches);
    let mut executor = Executor::new(program.unwrap());
    let step = |&groups: &Groups| {
        let mut gradients = trial.gradients();
        let feed = Feed { random: trial.random, groups, ..trial.feed() };
        let loss = executor.train(feed, &trial.values(), &mut gradients).unwrap();
        let TrialGradients { gradients, order } = gradients;
        let order = order.into_iter().map(|variable| variable.0);
        let bits = gradients.iter().flatten().chain([&loss]).map(|x| x.to_bits());
        (bits.chain(order).collect(), executor.fetched().to_vec())
    };
    asked.iter().map(step).collect()
}

/// Returns the kernels that a step with these fetches runs although it asks for none of them.
fn kernels_without_fetches(trial: &Trial, fetches: &[Fetch]) -> Vec<String> {
    let (examples, columns) = (trial.batch.examples, &trial.columns);
    let program = Program::training_with(&trial.graph, examples, columns, Threads::One, fetches).unwrap();
    let always = program.instructions.iter().filter(|own| own.groups.meets(Groups::ALWAYS));
    always.map(|own| format!("{:?} {:?} {}", own.kernel, own.completes, own.origin)).collect()
}

fn is_float(graph: &GraphSpec, node: NodeId) -> bool {
    graph.infer(2).unwrap()[node.index()].dtype == DType::F32
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Checks that fetches change no bit of a step (A) and no kernel of a step that asks for none of them
    /// (B), and that a fetch returns the value of its node.
    #[test]
    fn fetches_change_no_bit_of_a_step(
        choices in any_choices(1..12),
        end: [u8; 6],
        seed: u64,
        picks in prop::collection::vec((any::<usize>(), 0usize..3), 1..6),
    ) {
        let (graph, bounds) = RandomGraph::new(2, false).draw(&choices, end);
        let Some(trial) = Trial::smooth(&graph, &bounds, 2, seed) else { return Ok(()) };
        let fetch = |&(pick, group): &(usize, usize)| Fetch {
            node: NodeId((pick % graph.nodes.len()) as u32),
            groups: GROUPS[group],
        };
        let fetches: Vec<Fetch> =
            picks.iter().map(fetch).filter(|fetch| is_float(&graph, fetch.node)).collect();
        let plain = run(&trial, &[], &[Groups::NONE]).remove(0);
        prop_assert!(plain.1.is_empty());
        prop_assert_eq!(kernels_without_fetches(&trial, &fetches), kernels_without_fetches(&trial, &[]), "(B)");
        let all = GROUPS[0].with(GROUPS[1]).with(GROUPS[2]);
        let asked = [Groups::NONE, GROUPS[0], all, GROUPS[1], Groups::NONE];
        let exact = trial.interpret(Pass::Training).values;
        for (groups, (bits, fetched)) in asked.iter().zip(run(&trial, &fetches, &asked)) {
            prop_assert_eq!(&bits, &plain.0, "(A) with {:?}", groups);
            let wanted = fetches.iter().filter(|fetch| fetch.groups.meets(*groups));
            let wanted: Vec<f64> = wanted.flat_map(|fetch| exact[fetch.node.index()].clone()).collect();
            prop_assert_eq!(fetched.len(), wanted.len());
            for (own, wanted) in fetched.iter().zip(wanted) {
                prop_assert!((f64::from(*own) - wanted).abs() < 1e-3 * wanted.abs().max(1.0), "{own} {wanted}");
            }
        }
    }
}

/// Returns the graph of a convolution and a dense layer with sums of many terms, and a few functions of
/// elements.
fn layers() -> GraphSpec {
    let mut g = GraphBuilder::new("layers");
    let x = g.input("images", [5, 5, 3]);
    let labels = g.labels("labels");
    let zeros = InitializerSpec::Zeros;
    let kernel = g.variable("conv/kernel", [3, 3, 3, 4], zeros.clone());
    let bias = g.variable("conv/bias", [4], zeros.clone());
    let x = g.conv2d(x, kernel, Stride { stride: [1, 1], padding: Padding::Valid });
    let x = g.bias_add(x, bias);
    let x = g.relu(x);
    let x = g.reshape(x, [36]);
    let kernel = g.variable("dense/kernel", [36, 7], zeros.clone());
    let bias = g.variable("dense/bias", [7], zeros.clone());
    let x = g.matmul(x, kernel);
    let x = g.bias_add(x, bias);
    let x = g.relu(x);
    let scale = g.variable("scale", [7], zeros.clone());
    let x = g.mul(x, scale);
    let x = g.unary(UnaryOp::Gelu, x);
    let shift = g.variable("shift", [7], zeros);
    let x = g.add(shift, x);
    let loss = g.softmax_cross_entropy(x, labels);
    g.finish(loss, &[]).unwrap()
}

/// Checks that a fetch of a value that a fused kernel does not store changes no bit of a step. A kernel adds
/// a bias before the other terms of a sum, so it rounds differently if it is not fused.
#[test]
fn a_fetch_within_a_fused_kernel_changes_no_bit() {
    let graph = layers();
    let trial = Trial::new(&graph, &Bounds::from([("labels".into(), 7)]), 3, 1.0, 1);
    let asked = [Groups::NONE, GROUPS[0], Groups::NONE];
    let plain = run(&trial, &[], &[Groups::NONE]).remove(0).0;
    let (kernels, exact) = (kernels_without_fetches(&trial, &[]), trial.interpret(Pass::Training).values);
    let nodes = (0..graph.nodes.len() as u32).map(NodeId).filter(|&node| is_float(&graph, node));
    let fetches: Vec<Fetch> = nodes.map(|node| Fetch { node, groups: GROUPS[0] }).collect();
    // Each node alone, and all of them together.
    for fetches in fetches.chunks(1).chain([&fetches[..]]) {
        assert_eq!(kernels_without_fetches(&trial, fetches), kernels, "{fetches:?}");
        let steps = run(&trial, fetches, &asked);
        for (bits, _) in &steps {
            assert_eq!(bits, &plain, "{fetches:?}");
        }
        assert!(steps[0].1.is_empty() && steps[2].1.is_empty());
        let wanted: Vec<f64> = fetches.iter().flat_map(|fetch| exact[fetch.node.index()].clone()).collect();
        assert_eq!(steps[1].1.len(), wanted.len());
        for (own, wanted) in steps[1].1.iter().zip(wanted) {
            assert!((f64::from(*own) - wanted).abs() < 1e-4, "{fetches:?}: {own} {wanted}");
        }
    }
}

/// Returns the graph of a classifier of two classes, the node of its logits, and the nodes of its metrics:
/// the accuracy and the counts from which the AUC is computed.
fn classifier() -> (GraphSpec, NodeId, [NodeId; 2]) {
    let mut g = GraphBuilder::new("classifier");
    let x = g.input("features", [3]);
    let (labels, clicks) = (g.labels("labels"), g.labels("clicks"));
    let kernel = g.variable("kernel", [3, 2], InitializerSpec::Zeros);
    let bias = g.variable("bias", [2], InitializerSpec::Zeros);
    let product = g.matmul(x, kernel);
    let logits = g.bias_add(product, bias);
    let loss = g.softmax_cross_entropy(logits, labels);
    let accuracy = g.accuracy(logits, labels);
    let score = g.slice(logits, 1, 1, 1);
    let score = g.reshape(score, []);
    let auc = g.auc(score, clicks);
    let graph = g.finish(loss, &[("accuracy", accuracy), ("auc", auc)]).unwrap();
    (graph, logits, [accuracy, auc])
}

/// Checks that instructions that only fetches need run only on request (B).
#[test]
fn what_only_fetches_need_runs_only_on_request() {
    let (graph, logits, [accuracy, auc]) = classifier();
    let trial = Trial::new(&graph, &Bounds::new(), 4, 1.0, 1);
    let fetch = |node, group| Fetch { node, groups: Groups::only(group) };
    let fetches = [fetch(accuracy, 0), fetch(auc, 1), fetch(logits, 2)];
    let program = Program::training_with(&graph, 4, &trial.columns, Threads::One, &fetches).unwrap();
    let plain = trial.training().unwrap();
    let runs = |groups: Groups| program.instructions.iter().filter(|own| own.groups.meets(groups)).count();
    assert_eq!(runs(Groups::ALWAYS), plain.instructions.len());
    // The accuracy takes one instruction, and the counts take two: the slice and the counts.
    assert_eq!(program.instructions.len(), plain.instructions.len() + 3);
    assert_eq!(runs(Groups::ALWAYS.with(Groups::only(0))), plain.instructions.len() + 1);
    // The logits are computed anyway.
    assert_eq!(runs(Groups::ALWAYS.with(Groups::only(2))), plain.instructions.len());
    assert!(program.results.iter().all(|result| matches!(result.place, Place::Arena(_))));
}

#[test]
fn each_operation_of_a_timed_step_has_its_time() {
    let (graph, ..) = classifier();
    let trial = Trial::new(&graph, &Bounds::new(), 4, 1.0, 1);
    let mut executor = Executor::new(trial.training().unwrap());
    let mut step = |timed| {
        let feed = Feed { timed, ..trial.feed() };
        executor.train(feed, &trial.values(), &mut trial.gradients()).unwrap();
        executor.op_times().collect::<Vec<_>>()
    };
    assert!(step(false).is_empty());
    let times = step(true);
    let names = times.iter().map(|time| {
        let (node, kind) = (&graph.nodes[time.node.index()].name, &time.kind);
        format!("{kind} {node} {}", time.backward)
    });
    assert_eq!(
        names.collect::<Vec<_>>(),
        [
            "Product bias_add false",
            "SoftmaxCrossEntropy softmax_cross_entropy false",
            "Share softmax_cross_entropy true",
            "SoftmaxCrossEntropyGrad softmax_cross_entropy true",
            "SumRows bias_add true",
            "Product mat_mul true"
        ]
    );
    assert!(times.iter().all(|time| time.began <= time.ended));
    assert!(times.windows(2).all(|pair| pair[0].ended <= pair[1].began));
    assert!(step(false).is_empty());
}

#[test]
fn a_metric_after_the_loss_is_no_backward_operation() {
    let (graph, _, metrics) = classifier();
    let trial = Trial::new(&graph, &Bounds::new(), 4, 1.0, 1);
    let groups = Groups::only(0);
    let fetches = metrics.map(|node| Fetch { node, groups });
    let (examples, columns) = (trial.batch.examples, &trial.columns);
    let program = Program::training_with(&trial.graph, examples, columns, Threads::One, &fetches);
    let mut executor = Executor::new(program.unwrap());
    let feed = Feed { timed: true, groups, ..trial.feed() };
    executor.train(feed, &trial.values(), &mut trial.gradients()).unwrap();
    let times: Vec<_> = executor.op_times().collect();
    let first = |node| times.iter().position(|time| time.node == node).expect("it has run");
    for metric in metrics {
        assert!(first(metric) > first(graph.loss));
        assert!(times.iter().filter(|time| time.node == metric).all(|time| !time.backward));
    }
    assert!(times.iter().any(|time| time.backward));
}

#[test]
fn a_fetch_that_fails_is_nan_and_ends_no_step() {
    let (graph, _, [accuracy, auc]) = classifier();
    let mut trial = Trial::new(&graph, &Bounds::new(), 2, 1.0, 1);
    trial.batch.columns[2] = pushpull_messages::input::Column::I32(vec![0, 7]);
    let fetch = |node, group| Fetch { node, groups: Groups::only(group) };
    let (one, other) = (Groups::only(0), Groups::only(1));
    let fetched = run(&trial, &[fetch(accuracy, 0), fetch(auc, 1)], &[one, one.with(other), one]);
    let numbers: Vec<usize> = fetched.iter().map(|(_, fetched)| fetched.len()).collect();
    assert_eq!(numbers, [1, 1 + 2 * 4096, 1]);
    assert!(fetched.iter().all(|(_, fetched)| (0.0..=1.0).contains(&fetched[0])));
    assert!(fetched[1].1[1..].iter().all(|count| count.is_nan()));
    assert!(fetched.windows(2).all(|pair| pair[0].0 == pair[1].0));
}
