//! Metrics agree with those of the processor, on every device.

use pushpull_cuda::Operation;
use pushpull_kernels::cpu;

use crate::case::{Case, Data, agree};
use crate::mutations::{Mutation, find_all_in};
use crate::numbers::Numbers;

/// A number of bins that tells scores apart which differ in their last bits.
const FINE: usize = 1 << 20;

/// Numbers of rows and of classes.
const TOP_SIZES: [[usize; 2]; 14] = [
    [0, 3],
    [1, 1],
    [300, 1],
    [130, 2],
    [20, 5],
    [70, 8],
    [17, 16],
    [9, 31],
    [9, 32],
    [9, 33],
    [5, 257],
    [2, 1023],
    [9, 1024],
    [3, 1025],
];

fn case(name: String, operation: Operation, logits: &[f32], labels: &[i32], output: Vec<f32>) -> Case {
    let inputs = vec![Data::F32(logits.to_vec()), Data::I32(labels.to_vec())];
    Case { tolerance: 0.0, ..Case::new(name, operation, inputs, vec![Data::F32(output)]) }
}

pub(crate) fn top_k(logits: &[f32], labels: &[i32], classes: usize, k: usize) -> Case {
    let rows = labels.len();
    let correct = match k {
        1 => cpu::count_correct(logits, labels),
        _ => cpu::count_in_top_k(logits, labels, k),
    };
    let name = format!("the top {k} of {rows} rows of {classes}");
    let output = vec![correct as f32 / rows as f32];
    case(name, Operation::top_k(rows, classes, k), logits, labels, output)
}

/// Returns a case in which many logits are equal, and some labels are no classes.
pub(crate) fn drawn_top_k(numbers: &mut Numbers, rows: usize, classes: usize, k: usize) -> Case {
    let logits: Vec<f32> = (0..rows * classes).map(|_| numbers.below(1 + classes / 2) as f32).collect();
    let labels: Vec<i32> = (0..rows).map(|_| numbers.below(classes + 2) as i32 - 1).collect();
    top_k(&logits, &labels, classes, k)
}

/// Returns a case in which a block counts two rows, one after the other. Most labels are no classes, which
/// takes little time.
pub(crate) fn many_rows() -> Case {
    const ROWS: usize = 1100;
    const CLASSES: usize = 1025;
    let labels: Vec<i32> = (1..=ROWS).map(|end| if end % 50 < 2 { 0 } else { -1 }).collect();
    top_k(&vec![0.0; ROWS * CLASSES], &labels, CLASSES, 1)
}

pub(crate) fn auc_counts(logits: &[f32], labels: &[i32], bins: usize) -> Case {
    let mut counts = vec![f32::NAN; 2 * bins];
    cpu::auc_counts(&mut counts, logits, labels).unwrap();
    let examples = labels.len();
    let name = format!("the counts of {examples} examples in {bins} bins");
    case(name, Operation::auc_counts(examples, bins), logits, labels, counts)
}

pub(crate) fn drawn_auc_counts(numbers: &mut Numbers, examples: usize, bins: usize) -> Case {
    let logits = numbers.between(-6.0, 6.0, examples);
    let labels: Vec<i32> = (0..examples).map(|_| numbers.below(2) as i32).collect();
    auc_counts(&logits, &labels, bins)
}

/// Changes of the kernels of metrics.
const MUTATIONS: [Mutation; 6] = [
    Mutation { name: "ties that go the other way", from: "at < (Count)label", to: "at > (Count)label" },
    Mutation { name: "a NaN that is not seen", from: "other == other ? 0.0f : other", to: "0.0f" },
    Mutation { name: "a row too few", from: "; row < end;", to: "; row + 1 < end;" },
    Mutation { name: "a score of 1 without a bin", from: "(bin < bins ? bin : bins - 1)", to: "bin" },
    Mutation {
        name: "another exponential",
        from: "return 1.0f / (1.0f + p);",
        to: "return 1.0f / (1.0f + expf(-logit));",
    },
    Mutation {
        name: "counts that are not cleared",
        from: "counts[at] = 0;",
        to: "if (at > 0) counts[at] = 0;",
    },
];

/// Returns all cases.
pub(crate) fn cases() -> Vec<Case> {
    let (mut numbers, mut cases) = (Numbers(50), Vec::new());
    for [rows, classes] in TOP_SIZES {
        for k in [1, 2, 5] {
            cases.push(drawn_top_k(&mut numbers, rows, classes, k));
        }
    }
    for k in [0, 31, 32, 33, usize::MAX] {
        cases.push(drawn_top_k(&mut numbers, 5, 32, k));
    }
    cases.extend([top_k(&[], &[0, 1], 0, 1), many_rows()]);
    for [examples, bins] in [[0, 5], [1, 1], [31, 2], [257, 10], [600, 130], [33, 1000]] {
        cases.push(drawn_auc_counts(&mut numbers, examples, bins));
    }
    cases
}

#[test]
fn metrics_agree() {
    agree(&cases(), 50);
}

#[test]
fn a_row_with_a_nan_is_not_counted() {
    let nan = f32::NAN;
    let rows = [[1.0, 2.0, nan], [nan, 2.0, 1.0], [nan; 3], [1.0, 2.0, 0.0], [0.0, -0.0, -1.0]].concat();
    let infinite = [f32::INFINITY, f32::NEG_INFINITY, f32::INFINITY];
    let mut cases = Vec::new();
    for k in [1, 2, 3] {
        cases.push(top_k(&rows, &[1, 1, 0, 1, 1], 3, k));
        cases.extend([0, 1, 2].map(|label| top_k(&infinite, &[label], 3, k)));
    }
    agree(&cases, 51);
}

#[test]
fn a_score_has_the_same_bin_as_on_the_processor() {
    let mut numbers = Numbers(52);
    let mut logits = numbers.between(-3.0, 3.0, 3000);
    logits.extend(numbers.between(-110.0, 110.0, 300));
    logits.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 88.8, -88.8, 1e-40]);
    // The logits of scores at the edges of bins.
    logits.extend((1..64).map(|edge| (edge as f32 / (64.0 - edge as f32)).ln()));
    let labels: Vec<i32> = (0..logits.len()).map(|_| numbers.below(2) as i32).collect();
    // Cases of odd numbers have few blocks.
    agree(&[64, FINE, 3].map(|bins| auc_counts(&logits, &labels, bins)), 52);
}

#[test]
fn an_example_without_a_score_makes_all_counts_nan() {
    let (logits, nan) = ([1.0, -1.0, 0.5], vec![f32::NAN; 6]);
    let mut cases = vec![auc_counts(&[1.0, f32::NAN, 0.0], &[0, 1, 1], 3)];
    for bad in [-1, 2, i32::MIN, i32::MAX] {
        let name = format!("a label {bad}");
        cases.push(case(name, Operation::auc_counts(3, 3), &logits, &[0, 1, bad], nan.clone()));
    }
    agree(&cases, 53);
}

#[test]
fn every_mutation_of_metrics_is_found() {
    let mut numbers = Numbers(54);
    let cases = vec![
        drawn_top_k(&mut numbers, 9, 40, 3),
        top_k(&[1.0, 0.0], &[0], 2, 1),
        top_k(&[2.0, 2.0, 1.0, 1.0, 2.0, f32::NAN], &[0, 1], 3, 1),
        auc_counts(&[40.0, -1.0, 0.0], &[0, 1, 0], 3),
        drawn_auc_counts(&mut numbers, 2000, FINE),
    ];
    find_all_in(cases, &MUTATIONS);
}
