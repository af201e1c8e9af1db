//! Tests the instructions to which a graph is compiled: they contain no needless pass over memory, compute
//! no value twice, compute no value that is never read, and overwrite no value before its last read.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use proptest::prelude::*;
use pushpull_kernels::cpu::{Binary, Unary};
use pushpull_messages::graph::{GraphBuilder, GraphSpec, Stride, UnaryOp, Window};
use pushpull_messages::id::{NodeId, VariableId};
use pushpull_messages::variable::InitializerSpec;

use super::gradients::any_choices;
use super::random_graph::RandomGraph;
use super::trial::{Bounds, Trial, TrialGradients};
use crate::ir::{Epilogue, Kernel};
use crate::memory::{Instruction, Place};
use crate::{Executor, Feed, GradientSink, Program};
use pushpull_kernels::cpu::Step;

/// A receiver of gradients that stops a training step by a panic: `left` counts down the gradients that may
/// still be reported as complete.
struct CutShort {
    gradients: TrialGradients,
    left: usize,
}

impl GradientSink for CutShort {
    fn variable_mut(&mut self, variable: VariableId) -> &mut [f32] {
        self.gradients.variable_mut(variable)
    }

    fn complete(&mut self, _: VariableId) {
        self.left -= 1;
        if self.left == 0 {
            resume_unwind(Box::new(()));
        }
    }
}

const ZEROS: InitializerSpec = InitializerSpec::Zeros;

fn dense(g: &mut GraphBuilder, x: NodeId, name: &str, width: usize) -> NodeId {
    let inputs = g.example_shape(x).unwrap().elements();
    let kernel = g.variable(&format!("{name}/kernel"), [inputs, width], ZEROS);
    let bias = g.variable(&format!("{name}/bias"), [width], ZEROS);
    let product = g.matmul(x, kernel);
    g.bias_add(product, bias)
}

fn mlp() -> GraphSpec {
    let mut g = GraphBuilder::new("mlp");
    let x = g.input("features", [16]);
    let labels = g.labels("labels");
    let x = dense(&mut g, x, "dense1", 32);
    let x = g.relu(x);
    let x = dense(&mut g, x, "dense2", 16);
    let x = g.relu(x);
    let logits = dense(&mut g, x, "logits", 3);
    let loss = g.softmax_cross_entropy(logits, labels);
    let accuracy = g.accuracy(logits, labels);
    g.finish(loss, &[("accuracy", accuracy)]).unwrap()
}

fn cnn() -> GraphSpec {
    let mut g = GraphBuilder::new("cnn");
    let x = g.input("images", [8, 8, 1]);
    let labels = g.labels("labels");
    let mut x = x;
    for (layer, channels) in [4, 8].into_iter().enumerate() {
        let inputs = g.example_shape(x).unwrap().0[2];
        let kernel = g.variable(&format!("conv{layer}/kernel"), [3, 3, inputs, channels], ZEROS);
        let bias = g.variable(&format!("conv{layer}/bias"), [channels], ZEROS);
        x = g.conv2d(x, kernel, Stride { stride: [1, 1], padding: pushpull_messages::graph::Padding::Same });
        x = g.bias_add(x, bias);
        x = g.relu(x);
        x = g.max_pool2d(x, Window::tiles(2));
    }
    let flat = g.example_shape(x).unwrap().elements();
    let x = g.reshape(x, [flat]);
    let logits = dense(&mut g, x, "logits", 3);
    let loss = g.softmax_cross_entropy(logits, labels);
    g.finish(loss, &[]).unwrap()
}

fn trial(graph: &GraphSpec, examples: usize) -> Trial {
    Trial::new(graph, &Bounds::from([("labels".into(), 3)]), examples, 1.0, 1)
}

fn training(graph: &GraphSpec) -> Program {
    trial(graph, 8).training().unwrap()
}

fn evaluation(graph: &GraphSpec) -> Program {
    trial(graph, 8).evaluation().unwrap()
}

fn count(program: &Program, wanted: impl Fn(&Instruction) -> bool) -> usize {
    program.instructions.iter().filter(|instruction| wanted(instruction)).count()
}

fn kernels(program: &Program) -> Vec<&Kernel> {
    program.instructions.iter().map(|instruction| &instruction.kernel).collect()
}

/// Returns the elementwise functions of all instructions that apply a chain of such functions.
fn steps(program: &Program) -> Vec<Step> {
    let steps = program.instructions.iter().filter_map(|instruction| match &instruction.kernel {
        Kernel::Chain(steps) => Some(steps.clone()),
        _ => None,
    });
    steps.flatten().collect()
}

fn is_relu_gradient(instruction: &Instruction) -> bool {
    matches!(&instruction.kernel, Kernel::Chain(steps) if matches!(steps[..], [Step::UnaryGrad(Unary::Relu, _)]))
}

#[test]
fn an_mlp_compiles_without_a_needless_pass_over_memory() {
    let program = training(&mlp());
    let all = format!("{:#?}", kernels(&program));
    // There are three products forward and five backward: no gradient is computed for the features.
    assert_eq!(count(&program, |i| matches!(i.kernel, Kernel::Product(..))), 8, "{all}");
    assert_eq!(count(&program, |i| matches!(i.kernel, Kernel::Product(_, Epilogue::BiasRelu))), 2, "{all}");
    assert_eq!(count(&program, |i| matches!(i.kernel, Kernel::Product(_, Epilogue::Bias))), 1, "{all}");
    assert_eq!(count(&program, |i| is_relu_gradient(i) && i.in_place), 2, "{all}");
    assert_eq!(count(&program, |i| matches!(i.kernel, Kernel::SumRows)), 3, "{all}");
    // The last three instructions are the loss, its gradient and the fraction of the batch. Metrics are not
    // computed in training.
    assert_eq!(program.instructions.len(), 8 + 2 + 3 + 3, "{all}");
    // The arena holds the hidden layers, their gradients, the logits and the products' scratch: far less
    // than one block of memory per node.
    let scratch = program.instructions.iter().map(|instruction| instruction.scratch.len()).max().unwrap();
    let floats = 8 * (32 + 32 + 16 + 16 + 16) + scratch;
    assert!(program.arena_bytes() <= 4 * floats, "{}, scratch {scratch}", program.arena_bytes());
    assert_eq!(evaluation(&mlp()).instructions.len(), 5);
}

#[test]
fn a_cnn_compiles_without_a_needless_pass_over_memory() {
    let program = training(&cnn());
    let all = format!("{:#?}", kernels(&program));
    assert_eq!(count(&program, |i| matches!(i.kernel, Kernel::Conv2d(_, Epilogue::BiasRelu))), 2, "{all}");
    assert_eq!(count(&program, |i| matches!(i.kernel, Kernel::Conv2dKernelGrad(_))), 2, "{all}");
    // No gradient is computed for the images themselves.
    assert_eq!(count(&program, |i| matches!(i.kernel, Kernel::Conv2dInputGrad(_))), 1, "{all}");
    assert_eq!(count(&program, |i| matches!(i.kernel, Kernel::MaxPool2d(_))), 2, "{all}");
    assert_eq!(count(&program, |i| matches!(i.kernel, Kernel::MaxPool2dGrad(_))), 2, "{all}");
    assert_eq!(count(&program, |i| is_relu_gradient(i) && i.in_place), 2, "{all}");
    assert_eq!(count(&program, |i| matches!(i.kernel, Kernel::SumRows)), 3, "{all}");
    assert_eq!(count(&program, |i| matches!(i.kernel, Kernel::Product(..))), 3, "{all}");
    // Reshaping takes no instruction.
    assert_eq!(program.instructions.len(), 2 + 2 + 1 + 2 + 2 + 2 + 3 + 3 + 3, "{all}");
}

#[test]
fn every_gradient_is_written_where_it_is_sent_from() {
    for graph in [mlp(), cnn()] {
        let program = training(&graph);
        assert_eq!(count(&program, |i| i.kernel == Kernel::Copy), 0);
        assert_eq!(count(&program, |i| i.completes.is_some()), graph.variables.len());
        // The last layer's gradient is complete first, so its shard does not wait for the other gradients.
        let order: Vec<VariableId> = program.gradient_order().collect();
        let last = graph.variables.len() as u32 - 1;
        assert!(
            order[..2].contains(&VariableId(last)) && order[..2].contains(&VariableId(last - 1)),
            "{order:?}"
        );
    }
}

#[test]
fn functions_of_elements_that_follow_each_other_are_one_pass() {
    let mut g = GraphBuilder::new("chain");
    let x = g.input("x", [4]);
    let scale = g.variable("scale", [4], ZEROS);
    let shift = g.variable("shift", [], ZEROS);
    let y = g.unary(UnaryOp::Gelu, x);
    let y = g.mul(y, scale);
    let y = g.add(shift, y);
    let loss = g.reduce(pushpull_messages::graph::ReductionOp::Sum, y, &[0, 1], false);
    let graph = g.finish(loss, &[]).unwrap();
    let program = evaluation(&graph);
    let all = kernels(&program);
    let [Kernel::Chain(steps), Kernel::Reduce(..)] = all[..] else { panic!("{all:?}") };
    assert!(matches!(
        steps[..],
        [Step::Unary(Unary::Gelu), Step::Binary(Binary::Mul, ..), Step::Binary(Binary::Add, ..)]
    ));
}

#[test]
fn equal_nodes_are_computed_once() {
    let mut g = GraphBuilder::new("twice");
    let x = g.input("x", [4]);
    let scale = g.variable("scale", [4], ZEROS);
    let mut once = || {
        let y = g.mul(x, scale);
        g.unary(UnaryOp::Tanh, y)
    };
    let (a, b) = (once(), once());
    let dropped = [g.dropout(a, 0.5), g.dropout(b, 0.5)];
    let product = g.mul(dropped[0], dropped[1]);
    let loss = g.l2_loss(product);
    let graph = g.finish(loss, &[]).unwrap();
    let program = training(&graph);
    let tanh = steps(&program).into_iter().filter(|step| *step == Step::Unary(Unary::Tanh)).count();
    assert_eq!(tanh, 1, "{:#?}", kernels(&program));
    // Random nodes are never merged: each dropout draws its own mask, which its backward pass uses too.
    assert_eq!(count(&program, |i| matches!(i.kernel, Kernel::Dropout { .. })), 4);
    // In evaluation the two branches are the same, since there is no dropout.
    let program = evaluation(&graph);
    assert_eq!(count(&program, |i| matches!(i.kernel, Kernel::Dropout { .. })), 0);
    assert_eq!(steps(&program).into_iter().filter(|step| *step == Step::Unary(Unary::Tanh)).count(), 1);
}

#[test]
fn unread_values_are_not_computed() {
    let mut g = GraphBuilder::new("dead");
    let x = g.input("x", [4]);
    let scale = g.variable("scale", [4], ZEROS);
    let y = g.mul(x, scale);
    let dead = g.unary(UnaryOp::Exp, y);
    let deader = g.softmax(dead);
    let aside = g.reduce(pushpull_messages::graph::ReductionOp::Max, deader, &[0, 1], false);
    let loss = g.l2_loss(y);
    let graph = g.finish(loss, &[("aside", aside)]).unwrap();
    let program = training(&graph);
    assert_eq!(count(&program, |i| matches!(i.kernel, Kernel::Softmax { .. })), 0);
    assert!(!steps(&program).contains(&Step::Unary(Unary::Exp)));
    assert_eq!(count(&evaluation(&graph), |i| matches!(i.kernel, Kernel::Softmax { .. })), 1);
}

#[test]
fn a_value_that_is_read_again_is_not_written_over() {
    let mut g = GraphBuilder::new("again");
    let x = g.input("x", [4]);
    let kernel = g.variable("kernel", [4, 4], ZEROS);
    let y = g.matmul(x, kernel);
    let first = g.unary(UnaryOp::Exp, y);
    let second = g.unary(UnaryOp::Sigmoid, y);
    let softmax = g.softmax(first);
    let both = g.concat(&[softmax, second, first], 1);
    let loss = g.l2_loss(both);
    let graph = g.finish(loss, &[]).unwrap();
    let program = evaluation(&graph);
    let chains: Vec<&Instruction> =
        program.instructions.iter().filter(|i| matches!(i.kernel, Kernel::Chain(_))).collect();
    // The exponential of y cannot overwrite y, because y is read again. The sigmoid is the last reader of y,
    // so it can.
    assert!(!chains[0].in_place, "{chains:#?}");
    assert!(chains[1].in_place, "{chains:#?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Checks that no gradient changes after it was reported as complete: for each n, a run is stopped at
    /// its n-th report. The gradients that were reported before the stop must be bitwise equal to those of a
    /// run that was not stopped.
    #[test]
    fn a_gradient_that_is_complete_stays_as_it_is(
        choices in any_choices(1..10),
        end: [u8; 6],
        seed: u64,
    ) {
        let (graph, bounds) = RandomGraph::new(2, false).draw(&choices, end);
        let trial = Trial::new(&graph, &bounds, 2, 0.7, seed);
        let whole = trial.train();
        prop_assert_eq!(whole.order.len(), graph.variables.len());
        let values = trial.values();
        for told in 1..=whole.order.len() {
            let mut executor = Executor::new(trial.training().unwrap());
            let mut gradients = CutShort { gradients: trial.gradients(), left: told };
            let feed = Feed { random: trial.random, ..trial.feed() };
            let stopped = catch_unwind(AssertUnwindSafe(|| {
                let _ = executor.train(feed, &values, &mut gradients);
            }));
            prop_assert!(stopped.is_err());
            let now = gradients.gradients.gradients;
            for variable in &whole.order[..told] {
                let bits = |gradients: &[Vec<f32>]| -> Vec<u32> {
                    gradients[variable.index()].iter().map(|x| x.to_bits()).collect()
                };
                prop_assert_eq!(bits(&now), bits(&whole.gradients), "{}", variable);
            }
        }
    }

    /// Checks that a range of the arena that an instruction writes overlaps no other range that it reads or
    /// writes. No instruction may read a gradient, and no two instructions may write the same gradient.
    #[test]
    fn writes_never_overlap_reads(choices in any_choices(1..14), end: [u8; 6]) {
        let (graph, bounds) = RandomGraph::new(2, false).draw(&choices, end);
        let program = Trial::new(&graph, &bounds, 2, 1.0, 1).training().unwrap();
        let mut written = Vec::new();
        for instruction in &program.instructions {
            let arena = |places: &[Place]| -> Vec<std::ops::Range<usize>> {
                let ranges = places.iter().filter_map(|place| match place {
                    Place::Arena(range) => Some(range.clone()),
                    _ => None,
                });
                ranges.collect()
            };
            let mut writes = arena(&instruction.outputs);
            writes.extend(Some(instruction.scratch.clone()).filter(|scratch| !scratch.is_empty()));
            for (position, write) in writes.iter().enumerate() {
                let others = arena(&instruction.inputs).into_iter().chain(writes[position + 1..].iter().cloned());
                for other in others {
                    prop_assert!(write.end <= other.start || other.end <= write.start, "{:?}", instruction);
                }
            }
            prop_assert!(!instruction.inputs.iter().any(|place| matches!(place, Place::Gradient(_))));
            for place in &instruction.outputs {
                if let Place::Gradient(variable) = place {
                    prop_assert!(!written.contains(variable), "{} is written twice", variable);
                    prop_assert_eq!(instruction.completes, Some(*variable));
                    written.push(*variable);
                }
            }
        }
    }
}
