//! Tests that a device that runs CUDA kernels computes what the processor computes, on random graphs of all
//! operations. If the device is emulated, kernels run under sanitizers, and their threads in random orders.
//!
//! Tolerance: 10⁻⁴ of the largest number of a tensor (but at least 10⁻⁵).

use std::collections::BTreeSet;

use pushpull_cuda::{Card, Compiler, Driver, DriverError, Emulator, Operation};

use super::random_graph::{Choice, KINDS, RandomGraph};
use super::trial::{Numbers, Trained, Trial, TrialGradients};
use crate::{CudaExecutor, Feed, Program, Target};

/// The number of graphs that are tested in any case. Later ones are tested if they run a new kernel.
const GRAPHS: u64 = 16;
/// The number of graphs that are drawn.
const DRAWN: u64 = 400;
const EXAMPLES: usize = 4;

/// Every kernel that random graphs have.
const KERNELS: [&str; 46] = [
    "AveragePool2d",
    "AveragePool2dGrad",
    "BatchNorm",
    "BatchNormGrad",
    "BatchedProduct",
    "Binary",
    "Chain",
    "Concat",
    "Constant",
    "Conv2d",
    "Conv2dInputGrad",
    "Conv2dKernelGrad",
    "Copy",
    "Dropout",
    "Expand",
    "Gather",
    "GlobalAveragePool",
    "GlobalAveragePoolGrad",
    "LayerNorm",
    "LayerNormGrad",
    "LogSoftmax",
    "LogSoftmaxGrad",
    "MaxGrad",
    "MaxPool2d",
    "MaxPool2dGrad",
    "MeanSquaredError",
    "MeanSquaredErrorGrad",
    "Moments",
    "Paste",
    "Product",
    "ReciprocalStddev",
    "Reduce",
    "Scatter",
    "Share",
    "SigmoidCrossEntropy",
    "SigmoidCrossEntropyGrad",
    "Slice",
    "Softmax",
    "SoftmaxCrossEntropy",
    "SoftmaxCrossEntropyDense",
    "SoftmaxCrossEntropyDenseGrad",
    "SoftmaxCrossEntropyGrad",
    "SoftmaxGrad",
    "SumRows",
    "ToFloat",
    "Transpose",
];

/// Returns whether the operations of this graph keep the examples apart, so that devices can share a batch.
const fn is_apart(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

/// Returns the first example of the part of a batch that a device gets.
const fn first_of_part(seed: u64) -> usize {
    if is_apart(seed) { 1 } else { 0 }
}

/// Draws a graph and its data. Some graphs have the means of some nodes as metrics.
fn drawn(seed: u64) -> Option<Trial> {
    let mut numbers = Numbers::new(seed);
    let count = 4 + numbers.below(12);
    let mut byte = || numbers.below(256) as u8;
    let choices: Vec<Choice> =
        (0..count).map(|_| (byte() % KINDS, std::array::from_fn(|_| byte()))).collect();
    let end = std::array::from_fn(|_| byte());
    let graph = RandomGraph::new(EXAMPLES, is_apart(seed)).draw(&choices, end);
    let (graph, bounds) = if is_apart(seed) { graph } else { RandomGraph::measure(graph, EXAMPLES) };
    Trial::smooth(&graph, &bounds, EXAMPLES, seed)
}

fn assert_close(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.1f32, |most, x| most.max(x.abs()));
    for (at, (got, expected)) in got.iter().zip(expected).enumerate() {
        let close = (got - expected).abs() <= 1e-4 * largest || (got.is_nan() && expected.is_nan());
        assert!(close, "{what}: element {at} is {got}, expected {expected}");
    }
}

/// Trains on a device, and returns what [`Trial::train`] returns.
fn train(executor: &mut CudaExecutor, driver: &mut dyn Driver, trial: &Trial, first: usize) -> Trained {
    let mut gradients = trial.gradients();
    let feed = Feed { first, random: trial.random, ..trial.feed() };
    let loss = executor.train(driver, feed, &trial.values(), &mut gradients).unwrap();
    let TrialGradients { gradients, order } = gradients;
    Trained { loss, gradients, order }
}

fn assert_trained(what: &str, got: &Trained, expected: &Trained) {
    assert_close(&format!("{what}: the loss"), &[got.loss], &[expected.loss]);
    assert_eq!(got.order, expected.order, "{what}");
    for (id, (got, expected)) in got.gradients.iter().zip(&expected.gradients).enumerate() {
        assert_close(&format!("{what}: the gradient of variable {id}"), got, expected);
    }
}

/// Compiles a graph for a whole batch, for a part of one, and for an evaluation.
fn programs_of(seed: u64, trial: &Trial) -> [Program; 3] {
    let Trial { graph, columns, .. } = trial;
    let train = |examples| Program::training(graph, examples, columns, Target::Cuda).unwrap();
    let evaluation = Program::evaluation(graph, EXAMPLES, columns, Target::Cuda).unwrap();
    [train(EXAMPLES), train(EXAMPLES - first_of_part(seed)), evaluation]
}

/// Draws graphs that together have all kernels.
fn trials() -> Vec<(u64, Trial)> {
    let (mut ran, mut trials) = (BTreeSet::new(), Vec::new());
    for seed in 0..DRAWN {
        let Some(trial) = drawn(seed) else { continue };
        let programs = programs_of(seed, &trial);
        let instructions = programs.iter().flat_map(|program| &program.instructions);
        let kernels: BTreeSet<String> = instructions.map(|instruction| instruction.kernel.name()).collect();
        if seed < GRAPHS || !kernels.is_subset(&ran) {
            ran.extend(kernels);
            trials.push((seed, trial));
        }
    }
    assert_eq!(ran.iter().map(String::as_str).collect::<Vec<_>>(), KERNELS, "the kernels of these graphs");
    trials
}

/// Checks that a device computes what the processor computes.
fn agree(driver: &mut dyn Driver) {
    let trials = trials();
    let programs: Vec<[Program; 3]> = trials.iter().map(|(seed, trial)| programs_of(*seed, trial)).collect();
    // One compilation of all kernels takes less time than one for each program.
    let operations: Vec<Operation> = programs.iter().flatten().flat_map(CudaExecutor::operations).collect();
    driver.load(&Operation::source("programs", &operations)).unwrap();
    for ((seed, trial), [whole, part, evaluation]) in trials.iter().zip(programs) {
        let mut executor = CudaExecutor::loaded(whole, driver).unwrap();
        let first = train(&mut executor, driver, trial, 0);
        assert_trained(&format!("graph {seed}"), &first, &trial.train());
        // The second step is captured as graphs, which the third one repeats.
        for _ in 0..2 {
            let again = train(&mut executor, driver, trial, 0);
            assert_eq!(format!("{again:?}"), format!("{first:?}"), "graph {seed} has the same bits");
        }
        executor.release(driver).unwrap();
        let mut executor = CudaExecutor::loaded(part, driver).unwrap();
        let first = first_of_part(*seed);
        let got = train(&mut executor, driver, trial, first);
        assert_trained(&format!("a part of graph {seed}"), &got, &trial.train_part(first..EXAMPLES));
        executor.release(driver).unwrap();
        let mut executor = CudaExecutor::loaded(evaluation, driver).unwrap();
        let got = executor.evaluate(driver, trial.feed(), &trial.values()).unwrap().to_vec();
        assert_close(&format!("the evaluation of graph {seed}"), &got, &trial.evaluate());
        executor.release(driver).unwrap();
    }
    println!("CASES: {} graphs on {}.", trials.len(), driver.name());
}

/// Returns what tests of this kind use; `None`, after a warning, if this machine lacks it. If the variable
/// `PUSHPULL_TEST_DEVICES` is set, the kinds that it names must be there, and the others are left out.
fn found<T>(kind: &str, find: impl FnOnce() -> Result<T, DriverError>) -> Option<T> {
    let named = std::env::var("PUSHPULL_TEST_DEVICES").ok();
    let is_named = named.as_ref().map(|kinds| kinds.split(',').any(|own| own == kind));
    if is_named == Some(false) {
        println!("SKIPPED: PUSHPULL_TEST_DEVICES leaves out {kind}.");
        return None;
    }
    match find() {
        Ok(device) => return Some(device),
        Err(error) if is_named.is_some() => panic!("PUSHPULL_TEST_DEVICES names {kind}, but {error}"),
        Err(error) => println!("SKIPPED: {error}, so the engine is NOT tested on {kind} devices."),
    }
    None
}

#[test]
fn an_emulated_card_computes_what_the_processor_computes() {
    let folder = std::env::temp_dir().join("pushpull-emulator-tests");
    let Some(compiler) = found("emulated", || Compiler::find(folder)) else { return };
    let mut emulator = Emulator::start(&compiler, 3).unwrap();
    agree(&mut emulator);
    emulator.close().unwrap();
}

#[test]
fn a_card_computes_what_the_processor_computes() {
    let Some(mut card) = found("cuda", || Card::open(0)) else { return };
    agree(&mut card);
}
