//! Losses and their gradients agree with those of the processor, on every device.

use pushpull_cuda::Operation;
use pushpull_kernels::cpu::{self, Threads};

use crate::case::{Case, Data, agree};
use crate::mutations::{Mutation, find_all_in};
use crate::numbers::Numbers;

const UPSTREAM: f32 = 1.5;
/// Numbers of rows and of classes.
const SIZES: [[usize; 2]; 17] = [
    [0, 3],
    [1, 1],
    [300, 1],
    [3, 2],
    [11, 3],
    [70, 8],
    [35, 10],
    [17, 16],
    [2, 31],
    [9, 32],
    [2, 33],
    [3, 256],
    [2, 257],
    [5, 600],
    [2, 1023],
    [9, 1024],
    [3, 1025],
];
/// Numbers of elements. A block adds 1024 of them.
const COUNTS: [usize; 8] = [0, 1, 31, 257, 1023, 1024, 1025, 4000];

fn case(name: &str, operation: Operation, inputs: &[Data], output: Vec<f32>) -> Case {
    Case::new(name, operation, inputs.to_vec(), vec![Data::F32(output)])
}

/// Returns the cases of the loss and of its gradient.
pub(crate) fn cross_entropy(logits: &[f32], labels: &[i32], classes: usize) -> [Case; 2] {
    let rows = labels.len();
    let loss = cpu::softmax_cross_entropy(logits, labels, Threads::One).unwrap();
    let mut gradient = vec![f32::NAN; logits.len()];
    cpu::softmax_cross_entropy_grad(&mut gradient, logits, labels, UPSTREAM, Threads::One).unwrap();
    let inputs = [Data::F32(logits.to_vec()), Data::I32(labels.to_vec()), Data::F32(vec![UPSTREAM])];
    let name = |what: &str| format!("{what} of {rows} rows of {classes} with labels");
    [
        case(&name("the loss"), Operation::softmax_cross_entropy(rows, classes), &inputs[..2], vec![loss]),
        case(&name("the gradient"), Operation::softmax_cross_entropy_grad(rows, classes), &inputs, gradient),
    ]
}

/// Returns the cases of the loss and of its gradient.
pub(crate) fn dense(logits: &[f32], labels: &[f32], classes: usize) -> [Case; 2] {
    let rows = logits.len() / classes;
    let loss = cpu::softmax_cross_entropy_dense(logits, labels, classes);
    let mut gradient = vec![f32::NAN; logits.len()];
    cpu::softmax_cross_entropy_dense_grad(&mut gradient, logits, labels, classes, UPSTREAM, Threads::One);
    let inputs = [logits.to_vec(), labels.to_vec(), vec![UPSTREAM]].map(Data::F32);
    let name = |what: &str| format!("{what} of {rows} rows of {classes} with distributions");
    let operation = Operation::softmax_cross_entropy_dense(rows, classes);
    let gradient_of = Operation::softmax_cross_entropy_dense_grad(rows, classes);
    [
        case(&name("the loss"), operation, &inputs[..2], vec![loss]),
        case(&name("the gradient"), gradient_of, &inputs, gradient),
    ]
}

/// Returns the cases of the loss and of its gradient.
pub(crate) fn sigmoid(logits: &[f32], labels: &[f32]) -> [Case; 2] {
    let n = logits.len();
    let loss = cpu::sigmoid_cross_entropy(logits, labels);
    let mut gradient = vec![f32::NAN; n];
    cpu::sigmoid_cross_entropy_grad(&mut gradient, logits, labels, UPSTREAM, Threads::One);
    let inputs = [logits.to_vec(), labels.to_vec(), vec![UPSTREAM]].map(Data::F32);
    let name = |what: &str| format!("{what} of {n} sigmoids");
    [
        case(&name("the loss"), Operation::sigmoid_cross_entropy(n), &inputs[..2], vec![loss]),
        case(&name("the gradient"), Operation::sigmoid_cross_entropy_grad(n), &inputs, gradient),
    ]
}

/// Returns the cases of the loss and of its gradient.
pub(crate) fn squared_error(a: &[f32], b: &[f32]) -> [Case; 2] {
    let n = a.len();
    let loss = cpu::mean_squared_error(a, b);
    let mut gradient = vec![f32::NAN; n];
    cpu::mean_squared_error_grad(&mut gradient, a, b, UPSTREAM, Threads::One);
    let inputs = [a.to_vec(), b.to_vec(), vec![UPSTREAM]].map(Data::F32);
    let name = |what: &str| format!("{what} of {n} squares");
    [
        case(&name("the loss"), Operation::mean_squared_error(n), &inputs[..2], vec![loss]),
        case(&name("the gradient"), Operation::mean_squared_error_grad(n), &inputs, gradient),
    ]
}

/// Returns cases of random numbers: both losses of rows.
pub(crate) fn of_rows(numbers: &mut Numbers, [rows, classes]: [usize; 2]) -> Vec<Case> {
    let logits = numbers.between(-5.0, 5.0, rows * classes);
    let mut labels: Vec<i32> = (0..rows).map(|_| numbers.below(classes) as i32).collect();
    labels.iter_mut().take(1).for_each(|label| *label = classes as i32 - 1);
    let distributions = numbers.between(0.0, 1.0 / classes as f32, rows * classes);
    [cross_entropy(&logits, &labels, classes), dense(&logits, &distributions, classes)].concat()
}

/// Returns cases of random numbers: both losses of elements.
pub(crate) fn of_elements(numbers: &mut Numbers, n: usize) -> Vec<Case> {
    let [logits, labels] = [[-8.0, 8.0], [0.0, 1.0]].map(|[low, high]| numbers.between(low, high, n));
    [sigmoid(&logits, &labels), squared_error(&logits, &labels)].concat()
}

/// Returns cases of two rows, of which the second one has a label that is no class.
fn bad_label(logits: &[f32], bad: i32) -> Vec<Case> {
    let spoil = |mut case: Case| {
        case.inputs[1] = Data::I32(vec![0, bad]);
        let Data::F32(output) = &mut case.outputs[0] else { unreachable!() };
        let good = if output.len() == 1 { 0 } else { logits.len() / 2 };
        output[good..].fill(f32::NAN);
        case
    };
    cross_entropy(logits, &[0, 0], logits.len() / 2).map(spoil).to_vec()
}

/// Changes of the kernels of losses.
const MUTATIONS: [Mutation; 9] = [
    Mutation {
        name: "a part without its last item",
        from: "Count end = (part + 1) * of_part;",
        to: "Count end = (part + 1) * of_part - 1;",
    },
    Mutation { name: "a block works on one part", from: "part += gridDim.x", to: "part += items" },
    Mutation {
        name: "a row that is added by each of its threads",
        from: "threadIdx.x % (lanes) == 0 ? total : 0.0",
        to: "total",
    },
    Mutation {
        name: "all threads add the same rows",
        from: "row = part * (of_part) + threadIdx.x / (lanes);",
        to: "row = part * (of_part);",
    },
    Mutation {
        name: "rows that are added twice",
        from: "row < end; row += LANES / (lanes))",
        to: "row < end; row++)",
    },
    Mutation { name: "a mean over the parts", from: "sum / (double)items", to: "sum / (double)parts" },
    Mutation {
        name: "a label that is not checked",
        from: "return label >= 0 && (Count)label < classes;",
        to: "return true;",
    },
    Mutation { name: "a gradient that is not scaled", from: "y - factor", to: "y - 1.0f" },
    Mutation {
        name: "weights whose sum is taken for 1",
        from: "y * weight - weights[at]",
        to: "y - weights[at]",
    },
];

/// Returns all cases.
pub(crate) fn cases() -> Vec<Case> {
    let mut numbers = Numbers(40);
    let mut cases: Vec<Case> = SIZES.iter().flat_map(|&sizes| of_rows(&mut numbers, sizes)).collect();
    cases.extend(COUNTS.iter().flat_map(|&n| of_elements(&mut numbers, n)));
    cases
}

#[test]
fn losses_agree() {
    agree(&cases(), 40);
}

#[test]
fn large_logits_do_not_overflow() {
    let large = [1e38, 0.0, -1e38, 1e4, -1e4, 9.999e3];
    let labels = [0.0, 1.0, 0.5, 0.0, 1.0, 0.0];
    let cases = [
        cross_entropy(&large, &[0, 0], 3),
        cross_entropy(&large[3..], &[1], 3),
        dense(&large[3..], &labels[3..], 3),
        sigmoid(&large, &labels),
    ];
    agree(&cases.concat(), 41);
}

#[test]
fn a_number_that_is_not_finite_makes_its_loss_so() {
    let mut numbers = Numbers(42);
    let logits = numbers.between(-1.0, 1.0, 4 * 40);
    let labels = numbers.between(0.0, 1.0, 4 * 40);
    let mut cases = Vec::new();
    for (at, bad) in [(3, f32::NAN), (47, f32::INFINITY), (125, f32::NEG_INFINITY)] {
        let mut x = logits.clone();
        x[at] = bad;
        cases.extend(cross_entropy(&x, &[5, 6, 7, 8], 40));
        cases.extend(dense(&x, &labels, 40));
        cases.extend(sigmoid(&x, &labels));
        cases.extend(squared_error(&x, &labels));
    }
    let mut empty = logits;
    empty[40..80].fill(f32::NEG_INFINITY);
    cases.extend(cross_entropy(&empty, &[5, 6, 7, 8], 40));
    agree(&cases, 42);
}

#[test]
fn a_label_that_is_no_class_makes_its_row_nan() {
    let logits = Numbers(43).between(-1.0, 1.0, 6);
    let mut cases = [-1, 3, i32::MAX, i32::MIN].map(|bad| bad_label(&logits, bad)).concat();
    let bad = [Data::F32(vec![]), Data::I32(vec![0; 5])];
    let operation = Operation::softmax_cross_entropy(5, 0);
    cases.push(case("no classes", operation, &bad, vec![f32::NAN]));
    agree(&cases, 43);
}

#[test]
fn every_mutation_of_losses_is_found() {
    let mut numbers = Numbers(44);
    let cases = [
        of_rows(&mut numbers, [21, 40]),
        of_elements(&mut numbers, 3000),
        bad_label(&[0.0, 0.1, 0.2, 0.3], i32::MAX),
    ];
    find_all_in(cases.concat(), &MUTATIONS);
}
