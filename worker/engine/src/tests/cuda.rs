//! Tests that a device that runs CUDA kernels computes what the processor computes, on random graphs of all
//! operations. The device is emulated, so kernels run under sanitizers, and their threads in random orders.
//!
//! Tolerance: 10⁻⁴ of the largest number of a tensor (but at least 10⁻⁵).

use std::collections::BTreeSet;

use pushpull_cuda::{Compiler, Driver, Emulator, Operation};

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

/// Returns a compiler for emulated devices; `None`, after a warning, if this machine has none.
fn compiler() -> Option<Compiler> {
    match Compiler::find(std::env::temp_dir().join("pushpull-emulator-tests")) {
        Ok(compiler) => Some(compiler),
        Err(error) => {
            println!("SKIPPED: {error}, so the engine's CUDA programs are NOT tested.");
            None
        }
    }
}

#[test]
fn too_little_memory_is_an_error_that_says_who_takes_it() {
    let Some(compiler) = compiler() else { return };
    let trial = drawn(0).unwrap();
    let program = || Program::training(&trial.graph, EXAMPLES, &trial.columns, Target::Cuda).unwrap();
    let mut driver = Emulator::start(&compiler, 3).unwrap();
    let executor = CudaExecutor::new(program(), &mut driver, u64::MAX).unwrap();
    let bytes = executor.device_bytes();
    let ([free, total], variables) = (driver.memory_info().unwrap(), trial.variables.iter().map(Vec::len));
    assert_eq!(total - free, bytes, "what was allocated");
    assert!(bytes > 4 * variables.sum::<usize>() as u64);
    executor.release(&mut driver).unwrap();
    let error = CudaExecutor::new(program(), &mut driver, bytes - 1).unwrap_err().to_string();
    for words in ["may take 0.0 MiB", "batches of 4 examples", "for variables", "the largest: node"] {
        assert!(error.contains(words), "{error}");
    }
    driver.close().unwrap();
}

#[test]
fn a_device_computes_what_the_processor_computes() {
    let Some(compiler) = compiler() else { return };
    let (mut ran, mut trials, mut programs) = (BTreeSet::new(), Vec::new(), Vec::new());
    for seed in 0..DRAWN {
        let Some(trial) = drawn(seed) else { continue };
        let own = programs_of(seed, &trial);
        let instructions = own.iter().flat_map(|program| &program.instructions);
        let kernels: BTreeSet<String> = instructions.map(|instruction| instruction.kernel.name()).collect();
        if seed < GRAPHS || !kernels.is_subset(&ran) {
            ran.extend(kernels);
            trials.push((seed, trial));
            programs.push(own);
        }
    }
    assert_eq!(ran.iter().map(String::as_str).collect::<Vec<_>>(), KERNELS, "the kernels of these graphs");
    // One compilation of all kernels takes less time than one for each program.
    let operations: Vec<Operation> = programs.iter().flatten().flat_map(CudaExecutor::operations).collect();
    let mut driver = Emulator::start(&compiler, 3).unwrap();
    driver.load(&Operation::source("programs", &operations)).unwrap();
    for ((seed, trial), [whole, part, evaluation]) in trials.iter().zip(programs) {
        let mut executor = CudaExecutor::loaded(whole, &mut driver).unwrap();
        let first = train(&mut executor, &mut driver, trial, 0);
        assert_trained(&format!("graph {seed}"), &first, &trial.train());
        // The second step is captured as graphs, which the third one repeats.
        for _ in 0..2 {
            let again = train(&mut executor, &mut driver, trial, 0);
            assert_eq!(format!("{again:?}"), format!("{first:?}"), "graph {seed} has the same bits");
        }
        executor.release(&mut driver).unwrap();
        let mut executor = CudaExecutor::loaded(part, &mut driver).unwrap();
        let first = first_of_part(*seed);
        let got = train(&mut executor, &mut driver, trial, first);
        assert_trained(&format!("a part of graph {seed}"), &got, &trial.train_part(first..EXAMPLES));
        executor.release(&mut driver).unwrap();
        let mut executor = CudaExecutor::loaded(evaluation, &mut driver).unwrap();
        let got = executor.evaluate(&mut driver, trial.feed(), &trial.values()).unwrap().to_vec();
        assert_close(&format!("the evaluation of graph {seed}"), &got, &trial.evaluate());
        executor.release(&mut driver).unwrap();
    }
    driver.close().unwrap();
}
