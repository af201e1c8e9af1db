//! Operations on rows agree with their reference, on every device.

use pushpull_cuda::RowOperation;

use crate::numbers::{Numbers, assert_close};
use crate::reference;
use crate::runner::{Runner, runners};

const OPERATIONS: [RowOperation; 5] = [
    RowOperation::Softmax,
    RowOperation::CausalSoftmax,
    RowOperation::SoftmaxGrad,
    RowOperation::LogSoftmax,
    RowOperation::LogSoftmaxGrad,
];

fn check(name: &str, runner: &mut dyn Runner, operation: RowOperation, inputs: &[Vec<f32>], n: usize) {
    let got = runner.rows(operation, inputs, n).unwrap();
    let what = format!("{name}, {operation:?}, rows of {n}");
    // A sum of n numbers has about n errors of rounding.
    let tolerance = 1e-5 + 1e-7 * n as f64;
    assert_close(&what, &got, &reference::rows(operation, inputs, n), tolerance);
}

#[test]
fn operations_on_rows_agree_with_their_reference() {
    for (name, mut runner) in runners(7) {
        let mut numbers = Numbers(7);
        for operation in OPERATIONS {
            // The rows of causal softmax form square matrices.
            let sizes = match operation {
                RowOperation::CausalSoftmax => vec![(0, 5), (1, 1), (66, 33), (20, 10)],
                _ => vec![(0, 5), (3, 1), (3, 31), (3, 32), (3, 33), (3, 300), (9, 7 + numbers.below(30))],
            };
            for (rows, n) in sizes {
                let draw = |_| numbers.between(-3.0, 3.0, rows * n);
                let inputs: Vec<Vec<f32>> = (0..operation.inputs()).map(draw).collect();
                check(name, &mut *runner, operation, &inputs, n);
            }
        }
    }
}

#[test]
fn large_logits_do_not_overflow() {
    for (name, mut runner) in runners(8) {
        let large = vec![vec![1e4, -1e4, 9.999e3, 0.0, 300.0, -300.0]];
        check(name, &mut *runner, RowOperation::Softmax, &large, 6);
        check(name, &mut *runner, RowOperation::LogSoftmax, &large, 3);
    }
}

#[test]
fn a_row_that_is_not_finite_spoils_no_other() {
    for (name, mut runner) in runners(9) {
        let mut x = Numbers(9).between(-1.0, 1.0, 5 * 40);
        (x[3], x[47], x[125]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
        x[160..200].fill(f32::NEG_INFINITY);
        for operation in [RowOperation::Softmax, RowOperation::LogSoftmax] {
            check(name, &mut *runner, operation, std::slice::from_ref(&x), 40);
        }
    }
}
