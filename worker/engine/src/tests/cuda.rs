//! Tests that a device that runs CUDA kernels computes what the processor computes, on random graphs of all
//! operations. If the device is emulated, kernels run under sanitizers, and their threads in random orders.
//!
//! Tolerance: 10⁻⁴ of the largest number of a tensor (but at least 10⁻⁵).

use std::collections::{BTreeMap, BTreeSet};

use pushpull_cuda::{Card, Compiler, DriverError, Emulator, Multiplier, Operation, Precision};
use pushpull_kernels::cpu::Threads;
use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::NodeId;
use pushpull_messages::input::Column;
use pushpull_messages::variable::InitializerSpec;

use super::random_graph::{Choice, KINDS, RandomGraph};
use super::trial::{Bounds, Numbers, Trained, Trial, TrialBatch, TrialGradients};
use crate::{
    CudaDevice, CudaError, CudaExecutor, Executor, Feed, Fetch, Groups, NextBatch, OpTime, Program, Target,
};

/// The largest difference, as a part of the largest number of a tensor.
pub(super) const TOLERANCE: f32 = 1e-4;
/// The same with factors of products that have 8 significant bits. Later operations enlarge the difference.
pub(super) const BF16_TOLERANCE: f32 = 0.01;
/// The same for factors in `fp16`, or `tf32` if they are of a batch.
const FP16_TOLERANCE: f32 = 2e-3;
/// The number of graphs that are tested in any case. Later ones are tested if they run a new kernel.
const GRAPHS: u64 = 8;
/// The number of graphs that are drawn.
const DRAWN: u64 = 400;
pub(super) const EXAMPLES: usize = 4;

/// A device without a library.
const OWN: Target = Target::Cuda { multiplier: Multiplier::Own, attention: true };

/// Every kernel that random graphs have.
const KERNELS: [&str; 48] = [
    "Attention",
    "AttentionGrad",
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
    assert_within(TOLERANCE, what, got, expected);
}

fn assert_within(tolerance: f32, what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.1f32, |most, x| most.max(x.abs()));
    for (at, (got, expected)) in got.iter().zip(expected).enumerate() {
        let close = (got - expected).abs() <= tolerance * largest || (got.is_nan() && expected.is_nan());
        assert!(close, "{what}: element {at} is {got}, expected {expected}");
    }
}

/// Trains on a device, and returns what [`Trial::train`] returns.
fn train(executor: &mut CudaExecutor, device: &mut CudaDevice, trial: &Trial, first: usize) -> Trained {
    let mut gradients = trial.gradients();
    let feed = Feed { first, random: trial.random, ..trial.feed() };
    let loss = executor.train(device, feed, &trial.values(), &mut gradients).unwrap();
    let TrialGradients { gradients, order } = gradients;
    Trained { loss, gradients, order }
}

fn assert_trained(what: &str, got: &Trained, expected: &Trained) {
    assert_trained_within(TOLERANCE, what, got, expected);
}

fn assert_trained_within(tolerance: f32, what: &str, got: &Trained, expected: &Trained) {
    assert_within(tolerance, &format!("{what}: the loss"), &[got.loss], &[expected.loss]);
    assert_eq!(got.order, expected.order, "{what}");
    for (id, (got, expected)) in got.gradients.iter().zip(&expected.gradients).enumerate() {
        assert_within(tolerance, &format!("{what}: the gradient of variable {id}"), got, expected);
    }
}

/// Compiles a graph for a whole batch, for a part of one, and for an evaluation.
fn programs_of(seed: u64, trial: &Trial, target: Target) -> [Program; 3] {
    let Trial { graph, columns, .. } = trial;
    let train = |examples| Program::training(graph, examples, columns, target).unwrap();
    let evaluation = Program::evaluation(graph, EXAMPLES, columns, target).unwrap();
    [train(EXAMPLES), train(EXAMPLES - first_of_part(seed)), evaluation]
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

/// Returns an emulator; `None`, after a warning, if there can be none.
fn emulator() -> Option<Emulator> {
    // The folder of this program is below the folder for what cargo builds.
    let folder = std::env::current_exe().unwrap().with_file_name("emulator");
    let compiler = found("emulated", || Compiler::find(folder))?;
    Some(Emulator::start(&compiler, 3).unwrap())
}

/// Returns an emulated device without a library; `None`, after a warning, if there can be none.
pub(super) fn device(memory_fraction: f64) -> Option<CudaDevice> {
    let mut device = CudaDevice::new(Box::new(emulator()?), memory_fraction, Precision::F32).unwrap();
    // So small programs have several segments.
    device.segment_bytes = 0;
    Some(device)
}

/// Returns an emulated device whose library multiplies with this precision; `None`, after a warning, if there
/// can be none.
pub(super) fn library(precision: Precision) -> Option<CudaDevice> {
    Some(CudaDevice::new(Box::new(emulator()?.with_library()), 1.0, precision).unwrap())
}

/// Returns the same trial with another batch, other values and other random numbers.
fn another(trial: &Trial) -> Trial {
    let mut other = trial.clone();
    other.random += 1;
    other.variables.iter_mut().flatten().for_each(|value| *value *= 0.875);
    for column in &mut other.batch.columns {
        match column {
            Column::F32(numbers) => numbers.reverse(),
            Column::I32(numbers) => numbers.reverse(),
        }
    }
    other
}

#[test]
fn too_little_memory_is_an_error_that_says_who_takes_it() {
    let Some(mut device) = self::device(1.0) else { return };
    let trial = drawn(0).unwrap();
    let target = device.target();
    let program = || Program::training(&trial.graph, EXAMPLES, &trial.columns, target).unwrap();
    CudaExecutor::new(program(), &mut device).unwrap();
    let bytes = device.bytes();
    assert!(bytes > 4 * trial.variables.iter().map(Vec::len).sum::<usize>() as u64);
    // Programs share their memory.
    CudaExecutor::new(program(), &mut device).unwrap();
    assert_eq!(device.bytes(), bytes);
    let [free, total] = device.driver.memory_info().unwrap();
    assert_eq!(total - free, bytes, "what was allocated");
    let mut small = self::device((bytes - 1) as f64 / total as f64).unwrap();
    let error = CudaExecutor::new(program(), &mut small).unwrap_err().to_string();
    for words in ["may take 0.0 MiB", "batches of 4 examples", "for variables", "the largest: node"] {
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn graphs_are_captured_again_when_memory_has_grown() {
    let Some(mut device) = device(1.0) else { return };
    let trial = drawn(0).unwrap();
    let target = device.target();
    let program = |examples| Program::training(&trial.graph, examples, &trial.columns, target).unwrap();
    let mut part = CudaExecutor::new(program(EXAMPLES - 1), &mut device).unwrap();
    let (other, generation) = (another(&trial), device.memory.generation());
    for trial in [&trial, &other, &trial] {
        assert_trained("before", &train(&mut part, &mut device, trial, 1), &trial.train_part(1..EXAMPLES));
    }
    let mut whole = CudaExecutor::new(program(EXAMPLES), &mut device).unwrap();
    assert!(device.memory.generation() > generation, "the whole batch needs more memory");
    for trial in [&trial, &other, &trial] {
        assert_trained("the whole", &train(&mut whole, &mut device, trial, 0), &trial.train());
        assert_trained("after", &train(&mut part, &mut device, trial, 1), &trial.train_part(1..EXAMPLES));
    }
}

/// Returns a step's feed whose batch has a number, and announces the next batch.
fn announcing<'a>(trial: &'a Trial, number: u64, next: Option<(&'a Trial, u64)>) -> Feed<'a> {
    let next = next.map(|(next, number)| {
        let TrialBatch { columns, examples } = &next.batch;
        NextBatch { number, columns, examples: *examples }
    });
    Feed { number, next, random: trial.random, ..trial.feed() }
}

/// Trains with a feed, and compares what [`Trial::train`] returns.
fn assert_fed(
    what: &str,
    (executor, device): (&mut CudaExecutor, &mut CudaDevice),
    trial: &Trial,
    feed: Feed<'_>,
    expected: &Trained,
) {
    let mut gradients = trial.gradients();
    let loss = executor.train(device, feed, &trial.values(), &mut gradients).unwrap();
    let TrialGradients { gradients, order } = gradients;
    assert_trained(what, &Trained { loss, gradients, order }, expected);
}

#[test]
fn an_announced_batch_is_copied_before_its_step() {
    let Some(mut device) = device(1.0) else { return };
    let trial = drawn(1).unwrap();
    let others = another(&trial);
    // The same values, so only the batch differs.
    let other = Trial { batch: others.batch.clone(), ..trial.clone() };
    let program = Program::training(&trial.graph, EXAMPLES, &trial.columns, device.target()).unwrap();
    let mut executor = CudaExecutor::new(program, &mut device).unwrap();
    let (own, of_other) = (trial.train(), other.train());
    assert!(own.loss != of_other.loss, "the batches differ");
    let mut step = |what: &str, feed: Feed<'_>, expected: &Trained| {
        assert_fed(what, (&mut executor, &mut device), &trial, feed, expected);
    };
    for round in 0..4 {
        let number = 10 * round;
        step("announces", announcing(&trial, number + 1, Some((&other, number + 2))), &own);
        step("was announced", announcing(&other, number + 2, Some((&trial, number + 3))), &of_other);
        step("another one comes", announcing(&other, number + 4, Some((&other, number + 5))), &of_other);
        // Against the rules, so that it shows which batch the device has used.
        step("has another's number", announcing(&trial, number + 5, None), &of_other);
        step(
            "the number is not used twice",
            announcing(&trial, number + 5, Some((&other, number + 6))),
            &own,
        );
        step("no number", announcing(&trial, 0, None), &own);
    }
}

#[test]
fn an_evaluation_leaves_the_next_batch_on_the_device() {
    let Some(mut device) = device(1.0) else { return };
    let trial = drawn(1).unwrap();
    let other = Trial { batch: another(&trial).batch, ..trial.clone() };
    let target = device.target();
    let training = Program::training(&trial.graph, EXAMPLES, &trial.columns, target).unwrap();
    let evaluation = Program::evaluation(&trial.graph, EXAMPLES, &trial.columns, target).unwrap();
    let mut executor = CudaExecutor::new(training, &mut device).unwrap();
    let mut evaluation = CudaExecutor::new(evaluation, &mut device).unwrap();
    let feed = announcing(&trial, 1, Some((&other, 2)));
    assert_fed("announces", (&mut executor, &mut device), &trial, feed, &trial.train());
    evaluation.evaluate(&mut device, trial.feed(), &trial.values()).unwrap();
    // Against the rules, so that it shows which batch the device has used.
    let feed = announcing(&trial, 2, None);
    assert_fed("was announced", (&mut executor, &mut device), &trial, feed, &other.train());
}

#[test]
fn a_device_without_room_copies_batches_in_their_steps() {
    let trial = drawn(1).unwrap();
    let compiled = |device: &CudaDevice, examples| {
        Program::training(&trial.graph, examples, &trial.columns, device.target()).unwrap()
    };
    let Some(mut device) = device(1.0) else { return };
    CudaExecutor::new(compiled(&device, EXAMPLES), &mut device).unwrap();
    let [_, total] = device.driver.memory_info().unwrap();
    let fraction = (device.bytes() + 1) as f64 / total as f64;
    let mut small = self::device(fraction).unwrap();
    let mut executor = CudaExecutor::new(compiled(&small, EXAMPLES), &mut small).unwrap();
    let bytes = small.bytes();
    for number in 1..4 {
        let feed = announcing(&trial, number, Some((&trial, number + 1)));
        assert_fed("small", (&mut executor, &mut small), &trial, feed, &trial.train());
        assert_eq!(small.bytes(), bytes, "there is no second batch");
    }
}

#[test]
fn a_larger_program_takes_the_room_of_the_next_batch() {
    let Some(mut device) = device(1.0) else { return };
    let trial = drawn(0).unwrap();
    let target = device.target();
    let program = |examples| Program::training(&trial.graph, examples, &trial.columns, target).unwrap();
    let mut part = CudaExecutor::new(program(EXAMPLES - 1), &mut device).unwrap();
    let alone = device.bytes();
    let (other, expected) = (another(&trial), trial.train_part(1..EXAMPLES));
    let feed = |number, next| Feed { first: 1, ..announcing(&trial, number, next) };
    let first = feed(1, Some((&trial, 2)));
    assert_fed("before", (&mut part, &mut device), &trial, first, &expected);
    assert!(device.bytes() > alone && device.ahead.is_some(), "the next batch is there");
    CudaExecutor::new(program(EXAMPLES), &mut device).unwrap();
    assert!(device.ahead.is_none(), "the whole batch needs more memory");
    for (number, next) in [(2, &other), (4, &trial)] {
        let feed = feed(number, Some((next, number + 1)));
        assert_fed("after", (&mut part, &mut device), &trial, feed, &expected);
    }
}

#[test]
fn a_bad_label_is_the_error_of_the_processor() {
    let Some(mut device) = device(1.0) else { return };
    let mut g = GraphBuilder::new("labels");
    let x = g.input("x", [3]);
    let labels = g.labels("labels");
    let kernel = g.variable("kernel", [3, 2], InitializerSpec::Zeros);
    let logits = g.matmul(x, kernel);
    let loss = g.softmax_cross_entropy(logits, labels);
    let graph = g.finish(loss, &[]).unwrap();
    let mut trial = Trial::new(&graph, &Bounds::new(), EXAMPLES, 1.0, 1);
    let program = Program::training(&graph, EXAMPLES, &trial.columns, device.target()).unwrap();
    let mut executor = CudaExecutor::new(program, &mut device).unwrap();
    let good = trial.clone();
    trial.batch.columns[1] = Column::I32(vec![0, 1, 2, 0]);
    let mut gradients = trial.gradients();
    let error = executor.train(&mut device, trial.feed(), &trial.values(), &mut gradients).unwrap_err();
    let mut on_processor = Executor::new(trial.training().unwrap());
    let expected = on_processor.train(trial.feed(), &trial.values(), &mut gradients).unwrap_err();
    assert_eq!(error, CudaError::Step(expected));
    // The device goes on.
    assert_trained("after the error", &train(&mut executor, &mut device, &good, 0), &good.train());
}

#[test]
fn fetches_and_times_are_those_of_the_processor() {
    let Some(mut device) = device(1.0) else { return };
    let trial = drawn(0).unwrap();
    let (graph, columns) = (&trial.graph, &trial.columns);
    let is_float = |node: &NodeId| {
        graph.infer(EXAMPLES).unwrap()[node.index()].dtype == pushpull_messages::tensor::DType::F32
    };
    let nodes = (0..graph.nodes.len() as u32).map(NodeId).filter(is_float);
    let fetch = |node: NodeId| Fetch { node, groups: Groups::only(node.0 % 3) };
    let fetches: Vec<Fetch> = nodes.map(fetch).collect();
    let compiled = |target| Program::training_with(graph, EXAMPLES, columns, target, &fetches).unwrap();
    let mut on_device = CudaExecutor::new(compiled(device.target()), &mut device).unwrap();
    let mut on_processor = Executor::new(compiled(Target::Cpu(Threads::One)));
    let (values, none) = (trial.values(), Groups::NONE);
    let [a, b, c] = [0, 1, 2].map(Groups::only);
    // More sets of groups than have graphs at a time. Some are asked for in successive steps.
    let sets = [none, a, b, c, a.with(b), b.with(c)];
    let steps = (0..30).map(|step| (sets[step * step / 7 % 6], step % 9 == 8));
    for (groups, timed) in steps {
        let feed = Feed { groups, timed, random: trial.random, ..trial.feed() };
        let (mut here, mut there) = (trial.gradients(), trial.gradients());
        on_processor.train(feed, &values, &mut here).unwrap();
        on_device.train(&mut device, feed, &values, &mut there).unwrap();
        assert_close("what was fetched", on_device.fetched(), on_processor.fetched());
        let kinds = |times: &mut dyn Iterator<Item = OpTime>| -> Vec<(NodeId, String, bool)> {
            times.map(|time| (time.node, time.kind, time.backward)).collect()
        };
        let (here, there) = (kinds(&mut on_processor.op_times()), kinds(&mut on_device.op_times()));
        assert_eq!(here.is_empty(), !timed);
        assert_eq!(there, here);
    }
}

/// Returns the names of the kernels that some programs run.
fn kernels_of(programs: &[Program]) -> BTreeSet<String> {
    let instructions = programs.iter().flat_map(|program| &program.instructions);
    instructions.map(|instruction| instruction.kernel.name()).collect()
}

/// Draws graphs that together have all kernels.
fn trials() -> Vec<(u64, Trial)> {
    let (mut ran, mut trials) = (BTreeSet::new(), Vec::new());
    for seed in 0..DRAWN {
        let Some(trial) = drawn(seed) else { continue };
        let kernels = kernels_of(&programs_of(seed, &trial, OWN));
        if seed < GRAPHS || !kernels.is_subset(&ran) {
            ran.extend(kernels);
            trials.push((seed, trial));
        }
    }
    assert_eq!(ran.iter().map(String::as_str).collect::<Vec<_>>(), KERNELS, "the kernels of these graphs");
    trials
}

/// Draws graphs with products.
fn trials_of_products() -> Vec<(u64, Trial)> {
    let mut wanted = BTreeMap::from([("Product", 3), ("BatchedProduct", 2)]);
    let mut trials = Vec::new();
    for seed in 0..DRAWN {
        let Some(trial) = drawn(seed) else { continue };
        let kernels = kernels_of(&programs_of(seed, &trial, OWN));
        let has = |(kernel, count): (&&str, &mut usize)| {
            let counts = *count > 0 && kernels.contains(*kernel);
            *count -= usize::from(counts);
            counts
        };
        if wanted.iter_mut().filter_map(|one| has(one).then_some(())).count() > 0 {
            trials.push((seed, trial));
        }
    }
    assert!(wanted.values().all(|&count| count == 0), "not drawn: {wanted:?}");
    trials
}

/// Checks that a device computes what the processor computes.
pub(super) fn agree(device: &mut CudaDevice, trials: &[(u64, Trial)], tolerance: f32) {
    let target = device.target();
    let programs: Vec<[Program; 3]> =
        trials.iter().map(|(seed, trial)| programs_of(*seed, trial, target)).collect();
    // One compilation of all kernels takes less time than one for each program.
    let operations: Vec<Operation> = programs.iter().flatten().flat_map(CudaExecutor::operations).collect();
    let source = Operation::source("programs", &operations);
    device.driver.load(&source).unwrap();
    for ((seed, trial), [whole, part, evaluation]) in trials.iter().zip(programs) {
        let what = |what: &str| format!("{what} of graph {seed}");
        let mut executors =
            [whole, part, evaluation].map(|program| CudaExecutor::loaded(program, device).unwrap());
        let [whole, part, evaluation] = &mut executors;
        let (first, other) = (first_of_part(*seed), another(trial));
        let mut bits = Vec::new();
        // The second step of a program is captured as graphs, which the third one repeats.
        for trial in [trial, trial, &other] {
            let trained = train(whole, device, trial, 0);
            assert_trained_within(tolerance, &what("a step"), &trained, &trial.train());
            bits.push(format!("{trained:?}"));
            let trained = train(part, device, trial, first);
            assert_trained_within(tolerance, &what("a part"), &trained, &trial.train_part(first..EXAMPLES));
            let got = evaluation.evaluate(device, trial.feed(), &trial.values()).unwrap().to_vec();
            assert_within(tolerance, &what("the evaluation"), &got, &trial.evaluate());
        }
        assert_eq!(bits[0], bits[1], "{}", what("the bits"));
    }
    println!("CASES: {} graphs on {}.", trials.len(), device.driver.name());
}

#[test]
fn an_emulated_card_computes_what_the_processor_computes() {
    let Some(mut device) = device(1.0) else { return };
    agree(&mut device, &trials(), TOLERANCE);
}

#[test]
fn an_emulated_library_computes_what_the_processor_computes() {
    let Some(mut device) = library(Precision::F32) else { return };
    agree(&mut device, &trials_of_products(), TOLERANCE);
}

#[test]
fn random_graphs_with_factors_in_bf16_are_near_the_processor() {
    let Some(mut device) = library(Precision::Bf16) else { return };
    agree(&mut device, &trials_of_products(), BF16_TOLERANCE);
}

#[test]
fn random_graphs_with_factors_in_fp16_are_near_the_processor() {
    let Some(mut device) = library(Precision::Fp16) else { return };
    agree(&mut device, &trials_of_products(), FP16_TOLERANCE);
}

#[test]
fn factors_of_less_precision_change_little() {
    let trial = products();
    let expected = trial.train();
    // Factors have 10, 7 and 10 bits behind the point. `f32` has 23.
    let precisions =
        [(Precision::Tf32, [1e-6, 2e-3]), (Precision::Bf16, [1e-4, 2e-2]), (Precision::Fp16, [1e-6, 2e-3])];
    for (precision, [least, most]) in precisions {
        let on_card = found("cuda", || CudaDevice::new(Box::new(Card::open(0)?), 1.0, precision));
        for mut device in library(precision).into_iter().chain(on_card) {
            let program = Program::training(&trial.graph, EXAMPLES, &trial.columns, device.target()).unwrap();
            let mut executor = CudaExecutor::new(program, &mut device).unwrap();
            let mut bits = None;
            for _ in 0..3 {
                let got = train(&mut executor, &mut device, &trial, 0);
                let [own, expected] = [&got, &expected].map(|trained| trained.gradients.concat());
                let largest = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                let off = own.iter().zip(&expected).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
                assert!((least * largest..most * largest).contains(&off), "{precision}: {off} of {largest}");
                let got = format!("{got:?}");
                assert_eq!(*bits.get_or_insert(got.clone()), got, "{precision}: equal bits each time");
            }
        }
    }
}

#[test]
fn less_precision_needs_a_library() {
    let Some(emulator) = emulator() else { return };
    let error = CudaDevice::new(Box::new(emulator), 1.0, Precision::Bf16).err().unwrap().to_string();
    assert!(error.contains("products in bf16 need cuBLASLt"), "{error}");
}

#[test]
fn an_old_device_has_no_less_precision() {
    for precision in [Precision::F32, Precision::Tf32, Precision::Bf16, Precision::Fp16] {
        let Some(emulator) = emulator() else { return };
        let old = Box::new(emulator.with_library().before_ampere());
        let error = CudaDevice::new(old, 1.0, precision).err().map(|error| error.to_string());
        let expected = "emulated is too old for tf32, bf16 and fp16; use fp32";
        assert_eq!(error.as_deref(), (precision != Precision::F32).then_some(expected), "{precision}");
    }
}

/// Returns a trial of two layers, which are larger than those of drawn graphs.
fn products() -> Trial {
    let mut g = GraphBuilder::new("products");
    let mut x = g.input("x", [40]);
    let labels = g.labels("labels");
    for (name, sizes) in [("first", [40, 33]), ("second", [33, 5])] {
        let kernel = g.variable(name, sizes, InitializerSpec::Zeros);
        x = g.matmul(x, kernel);
        x = g.relu(x);
    }
    let loss = g.softmax_cross_entropy(x, labels);
    let graph = g.finish(loss, &[]).unwrap();
    Trial::new(&graph, &Bounds::new(), EXAMPLES, 1.0, 1)
}

#[test]
fn a_card_computes_what_the_processor_computes() {
    let Some(card) = found("cuda", || Card::open(0)) else { return };
    agree(&mut CudaDevice::new(Box::new(card), 1.0, Precision::F32).unwrap(), &trials(), TOLERANCE);
}
