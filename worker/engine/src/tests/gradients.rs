//! Tests that every gradient agrees with central finite differences of the f64 interpreter (G1), and that
//! the compiled program agrees with the interpreter, although it fuses kernels and overwrites values.
//!
//! Tolerances: for a loss, 10⁻⁴ of its magnitude (but at least 10⁻⁴); for a gradient, 3·10⁻⁴ of the largest
//! gradient of the graph (but at least 3·10⁻⁵). f32 is this accurate for numbers below 100. The finite
//! differences themselves are accurate to 10⁻⁸.

use std::collections::BTreeSet;

use proptest::prelude::*;
use pushpull_kernels::cpu::Threads;
use pushpull_messages::graph::{GraphBuilder, GraphSpec, Op, OutputSpec, Padding, Stride, Window};
use pushpull_messages::id::{NodeId, VariableId};
use pushpull_messages::input::{Column, ColumnSpec};
use pushpull_messages::variable::InitializerSpec;

use super::interpreter::Pass;
use super::random_graph::{Choice, KINDS, RandomGraph};
use super::trial::{Bounds, Numbers, Trained, Trial};
use crate::{Executor, Feed, Program};

/// The step of a central difference.
const STEP: f64 = 1e-5;

/// Compares a training step with the interpreter, and its gradients with finite differences.
fn check(trial: &Trial, seed: u64) -> Result<(), TestCaseError> {
    let Trained { loss, gradients, order } = trial.train();
    let expected = trial.interpret(Pass::Training);
    let wanted = expected.values[trial.graph.loss.index()][0];
    prop_assert!(
        (f64::from(loss) - wanted).abs() <= 1e-4 * (1.0 + wanted.abs()),
        "loss {loss}, not {wanted}"
    );

    let mut told = order.clone();
    told.sort();
    let all: Vec<VariableId> = (0..gradients.len() as u32).map(VariableId).collect();
    prop_assert_eq!(told, all, "each gradient is reported once");
    let program = trial.training().unwrap();
    prop_assert_eq!(order, program.gradient_order().collect::<Vec<_>>());

    check_updates(trial, &expected.updates, &gradients)?;
    check_differences(trial, &gradients, seed)
}

/// Compares the updates of variables that are not trained with the interpreter's updates.
fn check_updates(
    trial: &Trial,
    updates: &[(VariableId, Vec<f64>)],
    gradients: &[Vec<f32>],
) -> Result<(), TestCaseError> {
    for (id, variable) in trial.graph.variables.iter().enumerate().filter(|(_, variable)| !variable.trainable)
    {
        let mut wanted = vec![0.0; gradients[id].len()];
        for (_, update) in updates.iter().filter(|(of, _)| of.index() == id) {
            wanted.iter_mut().zip(update).for_each(|(sum, update)| *sum += update);
        }
        for (&got, wanted) in gradients[id].iter().zip(wanted) {
            let error = (f64::from(got) - wanted).abs();
            prop_assert!(error <= 1e-4 * (1.0 + wanted.abs()), "{}: {got}, not {wanted}", variable.name);
        }
    }
    Ok(())
}

/// Checks the gradients of trained variables against finite differences: some elements one by one, then all
/// elements along one random direction.
fn check_differences(trial: &Trial, gradients: &[Vec<f32>], seed: u64) -> Result<(), TestCaseError> {
    let largest = gradients.iter().flatten().fold(0.0f64, |most, &x| most.max(f64::from(x).abs()));
    let tolerance = 3e-4 * largest.max(0.1);
    let mut numbers = Numbers::new(seed ^ 0x5eed);
    let slope = |direction: &[Vec<f64>]| {
        let at = |step: f64| {
            let mut variables = trial.variables.clone();
            for (variable, direction) in variables.iter_mut().zip(direction) {
                variable.iter_mut().zip(direction).for_each(|(x, d)| *x += step * d);
            }
            trial.loss_at(&variables)
        };
        (at(STEP) - at(-STEP)) / (2.0 * STEP)
    };
    let nowhere: Vec<Vec<f64>> = trial.variables.iter().map(|variable| vec![0.0; variable.len()]).collect();
    let mut along_all = nowhere.clone();
    for (id, variable) in trial.graph.variables.iter().enumerate().filter(|(_, variable)| variable.trainable)
    {
        let computed = &gradients[id];
        let elements = computed.len();
        let some: BTreeSet<usize> = match elements {
            0..=4 => (0..elements).collect(),
            _ => (0..4).map(|_| numbers.below(elements)).collect(),
        };
        for element in some {
            let mut direction = nowhere.clone();
            direction[id][element] = 1.0;
            let (got, wanted) = (f64::from(computed[element]), slope(&direction));
            prop_assert!(
                (got - wanted).abs() <= tolerance,
                "{}[{element}]: {got}, and by differences {wanted}; at most {tolerance} apart",
                variable.name
            );
        }
        along_all[id] = (0..elements).map(|_| numbers.next().signum()).collect();
    }
    let along = gradients.iter().flatten().zip(along_all.iter().flatten());
    let got: f64 = along
        .filter(|(_, direction)| **direction != 0.0)
        .map(|(&gradient, direction)| f64::from(gradient) * direction)
        .sum();
    let wanted = slope(&along_all);
    let elements = along_all.iter().map(Vec::len).sum::<usize>() as f64;
    prop_assert!(
        (got - wanted).abs() <= tolerance * elements.sqrt().max(1.0),
        "along all variables: {got}, and by differences {wanted}"
    );
    Ok(())
}

/// Compares the loss and the metrics of an evaluation with the interpreter.
fn check_evaluation(trial: &Trial) -> Result<(), TestCaseError> {
    let results = trial.evaluate();
    let expected = trial.interpret(Pass::Evaluation).values;
    let nodes = std::iter::once(trial.graph.loss).chain(trial.graph.metrics.iter().map(|metric| metric.node));
    for (got, node) in results.into_iter().zip(nodes) {
        let wanted = expected[node.index()][0];
        let error = (f64::from(got) - wanted).abs();
        let label = trial.graph.label(node);
        prop_assert!(error <= 1e-4 * (1.0 + wanted.abs()) || error.is_nan(), "{label}: {got}, not {wanted}");
    }
    Ok(())
}

/// Predicts the values of up to three nodes of the trial's graph, and compares them with the interpreter.
/// The program gets only the columns that the prediction needs.
fn check_prediction(mut trial: Trial, picks: [prop::sample::Index; 3]) -> Result<(), TestCaseError> {
    let examples = trial.batch.examples;
    let output = |node: NodeId| OutputSpec { name: format!("output {node}"), node };
    let may_be_output = |node: &NodeId| {
        let graph = GraphSpec { outputs: vec![output(*node)], ..trial.graph.clone() };
        graph.validate(examples).is_ok()
    };
    let nodes: Vec<NodeId> =
        (0..trial.graph.nodes.len()).map(|node| NodeId(node as u32)).filter(may_be_output).collect();
    prop_assert!(!nodes.is_empty(), "every graph has an input");
    let chosen: BTreeSet<NodeId> = picks.iter().map(|pick| nodes[pick.index(nodes.len())]).collect();
    trial.graph.outputs = chosen.iter().map(|&node| output(node)).collect();
    let part = trial.graph.prediction();
    prop_assert!(part.nodes.iter().all(|node| trial.graph.find(&node.name).is_some()));
    let needed = |column: &ColumnSpec| part.find(&column.name).is_some();
    let (columns, fed): (Vec<_>, Vec<_>) =
        trial.columns.iter().cloned().zip(trial.batch.columns.clone()).filter(|(own, _)| needed(own)).unzip();
    let program = Program::prediction(&trial.graph, examples, &columns, Threads::One).unwrap();
    let elements: Vec<usize> = program.result_elements().collect();
    let mut executor = Executor::new(program);
    let results = executor.evaluate(Feed::whole(&fed, examples), &trial.values()).unwrap();
    prop_assert_eq!(results.len(), elements.iter().sum::<usize>());
    let expected = trial.interpret(Pass::Evaluation).values;
    let mut rest = results;
    for (node, elements) in chosen.into_iter().zip(elements) {
        let (own, others) = rest.split_at(elements);
        rest = others;
        prop_assert_eq!(own.len(), expected[node.index()].len());
        for (&got, &wanted) in own.iter().zip(&expected[node.index()]) {
            let error = (f64::from(got) - wanted).abs();
            let label = trial.graph.label(node);
            prop_assert!(
                error <= 1e-4 * (1.0 + wanted.abs()) || error.is_nan(),
                "{label}: {got}, not {wanted}"
            );
        }
    }
    Ok(())
}

pub(super) fn any_choices(length: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Choice>> {
    prop::collection::vec((0..KINDS, any::<[u8; 6]>()), length)
}

/// Generates a random computation graph that has metrics, and random input data for it. Returns `None` if
/// [`Trial::smooth`] finds no suitable data.
fn measured_trial(choices: &[Choice], end: [u8; 6], examples: usize, seed: u64) -> Option<Trial> {
    let drawn = RandomGraph::new(examples, false).draw(choices, end);
    let (graph, bounds) = RandomGraph::measure(drawn, examples);
    Trial::smooth(&graph, &bounds, examples, seed)
}

/// Configures the number of cases. A case too near to a kink is rejected and checks nothing. If more than
/// one case is rejected for every five that pass, the test fails, because it would check too little.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { max_global_rejects: cases / 5, ..ProptestConfig::with_cases(cases) }
}

proptest! {
    #![proptest_config(cases(3000))]

    #[test]
    fn random_graphs_agree_with_finite_differences(
        choices in any_choices(1..14),
        end: [u8; 6],
        examples in 1usize..4,
        seed: u64,
    ) {
        let (graph, bounds) = RandomGraph::new(examples, false).draw(&choices, end);
        let trial = Trial::smooth(&graph, &bounds, examples, seed);
        prop_assume!(trial.is_some());
        check(&trial.unwrap(), seed)?;
    }

    #[test]
    fn random_graphs_evaluate_as_the_interpreter_does(
        choices in any_choices(1..14),
        end: [u8; 6],
        examples in 1usize..4,
        seed: u64,
    ) {
        let trial = measured_trial(&choices, end, examples, seed);
        prop_assume!(trial.is_some());
        check_evaluation(&trial.unwrap())?;
    }

    #[test]
    fn random_graphs_predict_as_the_interpreter_does(
        choices in any_choices(1..14),
        end: [u8; 6],
        examples in 1usize..4,
        seed: u64,
        picks: [prop::sample::Index; 3],
    ) {
        let trial = measured_trial(&choices, end, examples, seed);
        prop_assume!(trial.is_some());
        check_prediction(trial.unwrap(), picks)?;
    }
}

/// Tests every operation by itself, directly before the loss. The random graphs might miss an operation by
/// chance.
#[test]
fn every_operation_alone_agrees_with_finite_differences() {
    let mut seen = BTreeSet::new();
    let mut numbers = Numbers::new(7);
    let mut smooth = 0;
    for round in 0..24u64 {
        for kind in 0..KINDS {
            let picks = [(); 6].map(|()| numbers.below(256) as u8);
            let end = [(); 6].map(|()| numbers.below(256) as u8);
            let examples = 1 + round as usize % 3;
            // The loss is computed from the last node.
            let end = [end[0], 1, end[2], 0, 0, end[5]];
            let (graph, bounds) = RandomGraph::new(examples, false).draw(&[(kind, picks)], end);
            let Some(trial) = Trial::smooth(&graph, &bounds, examples, round) else { continue };
            smooth += 1;
            seen.extend(graph.nodes.iter().map(|node| node.op.name()));
            if let Err(error) = check(&trial, round) {
                panic!("{error}\n{graph:#?}");
            }
        }
    }
    let metrics = ["accuracy", "top_k", "auc"];
    let missing: Vec<&str> = every_name().into_iter().filter(|name| !seen.contains(name)).collect();
    assert_eq!(missing, metrics, "every operation but those that have no gradient");
    assert!(smooth > 500, "{smooth} of 624 away from kinks");
}

fn every_name() -> Vec<&'static str> {
    let text = "input variable constant to_float neg abs square sqrt exp log sigmoid tanh relu leaky_relu gelu add \
                sub mul div reduce_sum reduce_mean reduce_max reshape transpose concat slice mat_mul bias_add \
                embedding conv2d max_pool2d average_pool2d global_average_pool batch_norm layer_norm dropout softmax \
                log_softmax softmax_cross_entropy sigmoid_cross_entropy mean_squared_error accuracy top_k auc";
    text.split_whitespace().collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Tests the metrics that count examples, with several numbers of classes, several values of `k`, and
    /// equal scores.
    #[test]
    fn metrics_count_as_the_interpreter_does(
        examples in 1usize..9,
        classes in 2usize..5,
        k in 1usize..4,
        coarse: bool,
        seed: u64,
    ) {
        let mut g = GraphBuilder::new("metrics");
        let x = g.input("x", [classes]);
        let labels = g.labels("labels");
        let scores = g.input("scores", [2]);
        let clicks = g.ids("clicks", [2]);
        let bias = g.variable("bias", [classes], InitializerSpec::Zeros);
        let logits = g.bias_add(x, bias);
        let loss = g.softmax_cross_entropy(logits, labels);
        let (accuracy, top) = (g.accuracy(logits, labels), g.top_k(logits, labels, k));
        let auc = g.push("auc", Op::AucCounts { bins: 8 }, &[scores, clicks]);
        let graph = g.finish(loss, &[("accuracy", accuracy), ("top", top), ("auc", auc)]).unwrap();
        let bounds = Bounds::from([("labels".into(), classes), ("clicks".into(), 2)]);
        let mut trial = Trial::new(&graph, &bounds, examples, 4.0, seed);
        if coarse {
            // Equal variables cause ties.
            trial.variables[0].fill(0.0);
            for column in &mut trial.batch.columns {
                if let Column::F32(numbers) = column {
                    numbers.iter_mut().for_each(|x| *x = x.round().clamp(-1.0, 1.0));
                }
            }
        }
        let results = trial.evaluate();
        let expected = trial.interpret(Pass::Evaluation).values;
        prop_assert!((f64::from(results[1]) - expected[accuracy.index()][0]).abs() < 1e-6);
        prop_assert!((f64::from(results[2]) - expected[top.index()][0]).abs() < 1e-6);
        let counts: Vec<f64> = results[3..].iter().map(|&count| f64::from(count)).collect();
        prop_assert_eq!(&counts, &expected[auc.index()]);
    }
}

fn one_normalisation_twice(again: bool) -> GraphSpec {
    let mut g = GraphBuilder::new("twice");
    let x = g.input("x", [3]);
    let one = InitializerSpec::Constant { value: 1.0 };
    let gamma = g.variable("gamma", [3], one.clone());
    let beta = g.variable("beta", [3], InitializerSpec::Zeros);
    let mean = g.untrained("mean", [3], InitializerSpec::Zeros);
    let variance = g.untrained("variance", [3], one);
    let mut y = g.batch_norm(x, [gamma, beta], [mean, variance], 1e-3, 0.75);
    if again {
        let squared = g.mul(y, x);
        y = g.batch_norm(squared, [gamma, beta], [mean, variance], 1e-3, 0.75);
    }
    let zero = g.constant(0.5);
    let off = g.sub(y, zero);
    let loss = g.l2_loss(off);
    g.finish(loss, &[]).unwrap()
}

#[test]
fn shared_moving_statistics_go_halfway_to_each_batch() {
    for again in [false, true] {
        let graph = one_normalisation_twice(again);
        let trial = Trial::smooth(&graph, &Bounds::new(), 5, 3).unwrap();
        let trained = trial.train();
        let updates = trial.interpret(Pass::Training).updates;
        assert_eq!(updates.len(), if again { 4 } else { 2 });
        for (variable, moving) in [(2, &trial.variables[2]), (3, &trial.variables[3])] {
            let mut wanted = [0.0; 3];
            for (_, update) in updates.iter().filter(|(of, _)| of.index() == variable) {
                wanted.iter_mut().zip(update).for_each(|(sum, one)| *sum += one);
            }
            for (channel, wanted) in wanted.iter().enumerate() {
                let got = f64::from(trained.gradients[variable][channel]);
                assert!((got - wanted).abs() < 1e-5, "{got} {wanted} {moving:?}");
            }
        }
        check(&trial, 3).unwrap();
    }
}

#[test]
fn unused_variables_have_zero_gradients_and_reused_ones_sums() {
    let mut g = GraphBuilder::new("odd");
    let x = g.input("x", [2]);
    let labels = g.labels("labels");
    let kernel = g.variable("kernel", [2, 2], InitializerSpec::Zeros);
    let aside = g.variable("aside", [2, 2], InitializerSpec::Zeros);
    let logits = g.matmul(x, kernel);
    let again = g.push("again", Op::Variable { variable: VariableId(0) }, &[]);
    let more = g.matmul(x, again);
    let both = g.add(logits, more);
    let beside = g.matmul(x, aside);
    let metric = g.accuracy(beside, labels);
    let loss = g.softmax_cross_entropy(both, labels);
    let graph = g.finish(loss, &[("beside", metric)]).unwrap();
    let mut trial = Trial::new(&graph, &Bounds::from([("labels".into(), 1)]), 1, 1.0, 1);
    trial.variables.iter_mut().for_each(|variable| variable.fill(0.0));
    trial.batch.columns[0] = Column::F32(vec![1.0, 2.0]);
    let trained = trial.train();
    // The softmax is uniform, so dlogits = (−1/2, 1/2), and the kernel is used twice.
    assert_eq!(trained.gradients, [vec![-1.0, 1.0, -2.0, 2.0], vec![0.0; 4]]);
    assert_eq!(trained.order, [VariableId(1), VariableId(0)]);
}

#[test]
fn a_loss_that_is_a_variable_itself_runs() {
    let mut g = GraphBuilder::new("odd");
    let loss = g.variable("loss", [], InitializerSpec::Zeros);
    let graph = g.finish(loss, &[]).unwrap();
    let mut trial = Trial::new(&graph, &Bounds::new(), 1, 1.0, 1);
    trial.variables[0] = vec![2.5];
    let trained = trial.train();
    assert_eq!((trained.loss, &trained.gradients[0][..]), (2.5, &[1.0][..]));
    assert_eq!(trial.evaluate(), [2.5]);
}

/// Checks that elements that are equal to the maximum get equal parts of its gradient.
#[test]
fn equal_maxima_share_the_gradient() {
    let mut g = GraphBuilder::new("ties");
    let x = g.variable("x", [2, 2], InitializerSpec::Zeros);
    let most = g.reduce(pushpull_messages::graph::ReductionOp::Max, x, &[1], false);
    let sum = g.reduce(pushpull_messages::graph::ReductionOp::Sum, most, &[0], false);
    let graph = g.finish(sum, &[]).unwrap();
    let mut trial = Trial::new(&graph, &Bounds::new(), 1, 1.0, 1);
    trial.variables[0] = vec![3.0, 3.0, 1.0, 2.0];
    assert_eq!(trial.train().gradients[0], [0.5, 0.5, 0.0, 1.0]);
}

/// Checks that two outputs of different shapes remain separate values, even if the same kernel computes them
/// from the same inputs.
#[test]
fn nodes_that_differ_in_shape_alone_are_distinct() {
    // The adjoint of both sums is the same, but one bias has 3 elements, and the other has 6.
    let mut g = GraphBuilder::new("rows");
    let x = g.input("x", [2, 3]);
    let narrow = g.variable("narrow", [3], InitializerSpec::Zeros);
    let wide = g.variable("wide", [2, 3], InitializerSpec::Zeros);
    let sum = g.add(x, narrow);
    let sum = g.add(sum, wide);
    let loss = g.l2_loss(sum);
    let rows = g.finish(loss, &[]).unwrap();

    // The adjoint of both gathered rows is the same, but one table has 2 rows, and the other has 4.
    let mut g = GraphBuilder::new("tables");
    let ids = g.ids("ids", [2]);
    let short = g.variable("short", [2, 3], InitializerSpec::Zeros);
    let long = g.variable("long", [4, 3], InitializerSpec::Zeros);
    let (a, b) = (g.embedding(short, ids), g.embedding(long, ids));
    let sum = g.add(a, b);
    let loss = g.l2_loss(sum);
    let tables = g.finish(loss, &[]).unwrap();

    // One column, which is added to each column, and one row, which is added to each row.
    let mut g = GraphBuilder::new("sides");
    let square = g.variable("square", [3, 3], InitializerSpec::Zeros);
    let row = g.reduce(pushpull_messages::graph::ReductionOp::Sum, square, &[1], false);
    let column = g.reduce(pushpull_messages::graph::ReductionOp::Sum, square, &[1], true);
    let sum = g.mul(square, row);
    let sum = g.add(sum, column);
    let loss = g.l2_loss(sum);
    let sides = g.finish(loss, &[]).unwrap();

    for graph in [rows, tables, sides] {
        let trial = Trial::smooth(&graph, &Bounds::from([("ids".into(), 2)]), 3, 1).unwrap();
        check(&trial, 1).unwrap();
    }
}

/// Checks that a convolution or pooling has exactly one window in an image if the stride is at least as
/// large as the image, even if products of strides overflow.
#[test]
fn a_stride_beyond_the_image_leaves_one_window() {
    for padding in [Padding::Valid, Padding::Same] {
        for stride in [[usize::MAX, usize::MAX], [usize::MAX / 2 + 1, 1], [3, 1 << 62]] {
            let mut g = GraphBuilder::new("stride");
            let x = g.input("x", [3, 3, 2]);
            let kernel = g.variable("kernel", [2, 2, 2, 3], InitializerSpec::Zeros);
            let around = g.variable("around", [3, 3, 1], InitializerSpec::Zeros);
            let x = g.mul(x, around);
            let y = g.conv2d(x, kernel, Stride { stride, padding });
            let window = Window { window: [2, 2], stride, padding };
            let (most, mean) = (g.max_pool2d(x, window), g.average_pool2d(x, window));
            let losses = [y, most, mean].map(|y| g.l2_loss(y));
            let loss = losses.into_iter().reduce(|sum, loss| g.add(sum, loss)).unwrap();
            let graph = g.finish(loss, &[]).unwrap();
            check(&Trial::smooth(&graph, &Bounds::new(), 2, 1).unwrap(), 1).unwrap();
        }
    }
}
