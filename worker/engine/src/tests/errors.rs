//! Tests the errors for rejected graphs and batches. If a node is at fault, the error names it.

use pushpull_kernels::cpu::Threads;
use pushpull_messages::graph::{GraphBuilder, GraphSpec, Op, Stride};
use pushpull_messages::id::NodeId;
use pushpull_messages::input::{Column, ColumnSpec};
use pushpull_messages::tensor::TensorSpec;
use pushpull_messages::variable::InitializerSpec;

use super::trial::{Bounds, Trial};
use crate::{CompileError, Executor, Feed, Program, StepError, StepFault};

const ZEROS: InitializerSpec = InitializerSpec::Zeros;

/// Returns a classifier of three classes, whose inputs are a column of floats and a column of ids of an
/// embedding. Its metrics are the accuracy and the AUC.
fn classifier() -> GraphSpec {
    let mut g = GraphBuilder::new("classifier");
    let x = g.input("x", [2]);
    let words = g.ids("words", []);
    let labels = g.labels("labels");
    let clicks = g.ids("clicks", [3]);
    let table = g.variable("table", [4, 2], ZEROS);
    let rows = g.embedding(table, words);
    let both = g.add(x, rows);
    let kernel = g.variable("kernel", [2, 3], ZEROS);
    let logits = g.matmul(both, kernel);
    let auc = g.auc(logits, clicks);
    let loss = g.softmax_cross_entropy(logits, labels);
    let accuracy = g.accuracy(logits, labels);
    g.finish(loss, &[("auc", auc), ("accuracy", accuracy)]).unwrap()
}

fn trial() -> Trial {
    let bounds = [("words", 4), ("labels", 3), ("clicks", 2)];
    let bounds: Bounds = bounds.into_iter().map(|(name, bound)| (name.to_owned(), bound)).collect();
    Trial::new(&classifier(), &bounds, 2, 1.0, 1)
}

#[test]
fn a_graph_that_is_not_valid_is_refused_as_the_check_says() {
    let mut trial = trial();
    let node = trial.graph.find("add").unwrap();
    trial.graph.nodes[node.index()].inputs[0] = NodeId(99);
    for error in [trial.training().unwrap_err(), trial.evaluation().unwrap_err()] {
        assert!(matches!(&error, CompileError::Graph(_)), "{error}");
        assert!(error.to_string().contains("(add 'add') takes node 99"), "{error}");
    }
}

#[test]
fn operations_without_a_gradient_are_named() {
    let mut graph = classifier();
    graph.loss = graph.find("accuracy").unwrap();
    let columns = trial().columns;
    let error = Program::training(&graph, 2, &columns, Threads::One).unwrap_err();
    let expected = "(accuracy 'accuracy'), which has no gradient with respect to its logits";
    assert!(error.to_string().contains(expected), "{error}");
    assert!(Program::evaluation(&graph, 2, &columns, Threads::One).is_ok());

    for (what, loss) in [
        ("softmax_cross_entropy", Op::SoftmaxCrossEntropy),
        ("sigmoid_cross_entropy", Op::SigmoidCrossEntropy),
    ] {
        let mut g = GraphBuilder::new("labels");
        let x = g.input("x", [3]);
        let labels = g.variable("labels", [2, 3], ZEROS);
        let loss = g.push(what, loss, &[x, labels]);
        let graph = g.finish(loss, &[]).unwrap();
        let columns = [ColumnSpec { name: "x".into(), example: TensorSpec::f32([3]) }];
        let error = Program::training(&graph, 2, &columns, Threads::One).unwrap_err();
        assert!(matches!(&error, CompileError::NoGradient { input: "its labels", .. }), "{error}");
        assert!(error.to_string().contains(&format!("({what} '{what}')")), "{error}");
    }
}

#[test]
fn an_input_that_the_data_lack_is_named() {
    let trial = trial();
    let mut wider = trial.columns.clone();
    wider[0].example = TensorSpec::f32([3]);
    for columns in [wider, trial.columns[1..].to_vec(), Vec::new()] {
        for error in [
            Program::training(&trial.graph, 2, &columns, Threads::One).unwrap_err(),
            Program::evaluation(&trial.graph, 2, &columns, Threads::One).unwrap_err(),
        ] {
            let text = error.to_string();
            assert!(matches!(&error, CompileError::NoColumn { name, .. } if name == "x"), "{error}");
            assert!(text.contains("input 'x' asks for f32[2]"), "{error}");
            let there = if columns.is_empty() { "none" } else { "'labels' i32[]" };
            assert!(text.contains(there), "{error}");
        }
    }
}

#[test]
fn a_window_beyond_all_memory_is_named() {
    let mut g = GraphBuilder::new("wide");
    let x = g.input("x", [1 << 31, 1, 1]);
    let kernel = g.variable("kernel", [1, 1 << 31, 1, 1], ZEROS);
    let geometry = Stride { stride: [1 << 30, 1], padding: pushpull_messages::graph::Padding::Same };
    let y = g.conv2d(x, kernel, geometry);
    let loss = g.l2_loss(y);
    let graph = g.finish(loss, &[]).unwrap();
    let columns = [ColumnSpec { name: "x".into(), example: TensorSpec::f32([1 << 31, 1, 1]) }];
    let error = Program::training(&graph, 1, &columns, Threads::One).unwrap_err();
    assert!(matches!(&error, CompileError::Geometry { .. }), "{error}");
    assert!(error.to_string().contains("(conv2d 'conv2d')"), "{error}");
}

#[test]
fn a_step_beyond_the_budget_of_memory_is_refused() {
    let mut g = GraphBuilder::new("large");
    let x = g.input("x", [1 << 30]);
    let scale = g.variable("scale", [], ZEROS);
    let y = g.mul(x, scale);
    let parts = [g.softmax(y), g.log_softmax(y), y, y];
    let sum = parts.into_iter().reduce(|sum, part| g.mul(sum, part)).unwrap();
    let loss = g.l2_loss(sum);
    let graph = g.finish(loss, &[]).unwrap();
    let columns = [ColumnSpec { name: "x".into(), example: TensorSpec::f32([1 << 30]) }];
    let error = Program::training(&graph, 4, &columns, Threads::One).unwrap_err();
    assert!(matches!(error, CompileError::TooLarge { elements, .. } if elements > 1 << 32), "{error}");
}

fn fault(column: usize, integers: Vec<i32>) -> [Result<(), StepError>; 2] {
    let mut trial = trial();
    trial.batch.columns[column] = Column::I32(integers);
    let (values, mut gradients) = (trial.values(), trial.gradients());
    let feed = trial.feed();
    let mut training = Executor::new(trial.training().unwrap());
    let mut evaluation = Executor::new(trial.evaluation().unwrap());
    let outcomes = [
        training.train(feed, &values, &mut gradients).map(|_| ()),
        evaluation.evaluate(feed, &values).map(|_| ()),
    ];
    // An executor whose step failed runs again with valid data.
    let good = self::trial();
    let feed = good.feed();
    assert!(training.train(feed, &values, &mut gradients).is_ok());
    assert!(evaluation.evaluate(feed, &values).is_ok());
    outcomes
}

#[test]
fn labels_and_ids_out_of_range_fail_the_step_and_name_the_node() {
    for wrong in [-1, 3, i32::MIN, i32::MAX] {
        for error in fault(2, vec![0, wrong]).map(Result::unwrap_err) {
            let StepFault::Label(fault) = error.fault else { panic!("{error}") };
            assert_eq!((fault.row, fault.label, fault.classes), (1, wrong, 3));
            let text = error.to_string();
            assert!(text.contains("(softmax_cross_entropy 'softmax_cross_entropy')"), "{text}");
            assert!(text.contains(&wrong.to_string()), "{text}");
        }
    }
    for wrong in [-1, 4, i32::MIN, i32::MAX] {
        for error in fault(1, vec![wrong, 0]).map(Result::unwrap_err) {
            assert!(matches!(error.fault, StepFault::Id(_)), "{error}");
            let text = error.to_string();
            assert!(text.contains("(embedding 'embedding')") && text.contains(&wrong.to_string()), "{text}");
        }
    }
    // In training the metric is not computed, so its labels cause no error.
    let [training, evaluation] = fault(3, vec![0, 1, 0, 1, 0, 2]);
    assert!(training.is_ok());
    let error = evaluation.unwrap_err();
    assert!(matches!(error.fault, StepFault::Label(fault) if fault.label == 2), "{error}");
    assert!(error.to_string().contains("(auc 'auc')"), "{error}");
}

/// Checks that running a program on a batch smaller than the size for which it was compiled panics: this is
/// a bug of the caller, not a data error.
#[test]
#[should_panic(expected = "the program was compiled for a larger batch")]
fn a_batch_that_is_too_small_is_never_read_beyond_its_end() {
    let trial = trial();
    let mut executor = Executor::new(trial.evaluation().unwrap());
    let feed = Feed { first: 1, ..trial.feed() };
    let _ = executor.evaluate(feed, &trial.values());
}
