//! Reductions agree with those of the processor, on every device.

use pushpull_cuda::Operation;
use pushpull_kernels::cpu::{self, Broadcast, Reduction, Side, Threads};

use crate::case::{Case, Data, agree};
use crate::numbers::Numbers;

/// Shapes with the shapes to which they are reduced. A thread reduces few elements, a block reduces many.
const SHAPES: [[&[usize]; 2]; 15] = [
    [&[1, 5], &[4, 5]],
    [&[4, 1], &[4, 5]],
    [&[1, 1], &[4, 5]],
    [&[3, 1], &[3, 400]],
    [&[1, 3], &[400, 3]],
    [&[2, 1, 3, 1], &[2, 9, 3, 11]],
    [&[1, 4, 1], &[6, 4, 5]],
    [&[300, 1], &[300, 2]],
    [&[5], &[5]],
    [&[0, 1], &[0, 3]],
    [&[3, 1], &[3, 0]],
    [&[1, 1, 1], &[7, 11, 13]],
    // Several chunks of rows, and columns of several matrices.
    [&[1, 40], &[300, 40]],
    [&[1], &[4200]],
    [&[2, 1, 33], &[2, 40, 33]],
];

fn elements(shape: &[usize]) -> usize {
    shape.iter().product()
}

pub(crate) fn reduction(reduction: Reduction, [to, from]: [&[usize]; 2], x: &[f32]) -> Case {
    let shapes = Broadcast::new(to, from).unwrap();
    let mut output = vec![f32::NAN; elements(to)];
    cpu::reduce(&mut output, x, reduction, &shapes, Side::A);
    let name = format!("{reduction:?} of {from:?} to {to:?}");
    let operation = Operation::reduce(reduction, &shapes);
    Case::new(name, operation, vec![Data::F32(x.to_vec())], vec![Data::F32(output)])
}

/// Returns the case of the gradient of a maximum. Many elements are equal.
fn max_grad(numbers: &mut Numbers, [to, from]: [&[usize]; 2]) -> Case {
    let shapes = Broadcast::new(to, from).unwrap();
    let x: Vec<f32> = (0..elements(from)).map(|_| numbers.below(4) as f32).collect();
    let mut maxima = vec![f32::NAN; elements(to)];
    cpu::reduce(&mut maxima, &x, Reduction::Max, &shapes, Side::A);
    let gradient = numbers.between(-1.0, 1.0, elements(to));
    let (mut output, mut scratch) = (vec![f32::NAN; x.len()], vec![f32::NAN; maxima.len()]);
    cpu::reduce_max_grad(&mut output, [&x, &maxima, &gradient], &mut scratch, &shapes, Side::A);
    let inputs = [x, maxima, gradient].map(Data::F32).to_vec();
    let name = format!("the gradient of the maxima of {from:?} to {to:?}");
    Case::new(name, Operation::max_grad(&shapes), inputs, vec![Data::F32(output)])
}

fn reductions() -> Vec<Case> {
    let (mut numbers, mut cases) = (Numbers(30), Vec::new());
    for shapes in SHAPES {
        let x = numbers.between(-1.0, 1.0, elements(shapes[1]));
        for f in [Reduction::Sum, Reduction::Mean, Reduction::Max] {
            cases.push(reduction(f, shapes, &x));
        }
        cases.push(max_grad(&mut numbers, shapes));
    }
    cases
}

/// Returns cases in which a NaN must reach its own result only.
fn not_finite() -> Vec<Case> {
    let mut cases = Vec::new();
    for shapes @ [_, from] in [[&[4, 1][..], &[4, 5][..]], [&[3, 1], &[3, 400]], [&[1, 3], &[1100, 3]]] {
        let mut x = Numbers(31).between(-1.0, 1.0, elements(from));
        x[1] = f32::NAN;
        let last = x.len() - 1;
        x[last] = f32::NEG_INFINITY;
        for f in [Reduction::Sum, Reduction::Mean, Reduction::Max] {
            cases.push(reduction(f, shapes, &x));
        }
    }
    cases
}

fn sums_of_rows() -> Vec<Case> {
    let (mut numbers, mut cases) = (Numbers(32), Vec::new());
    for [rows, n] in [[0, 3], [1, 1], [5, 300], [300, 5], [33, 32]] {
        let x = numbers.between(-1.0, 1.0, rows * n);
        let mut output = vec![f32::NAN; n];
        cpu::sum_rows(&mut output, &x, Threads::One);
        let operation = Operation::sum_rows(rows, n);
        let name = format!("the sum of {rows} rows of {n}");
        cases.push(Case::new(name, operation, vec![Data::F32(x)], vec![Data::F32(output)]));
    }
    cases
}

/// Returns all cases.
pub(crate) fn cases() -> Vec<Case> {
    [reductions(), not_finite(), sums_of_rows()].concat()
}

#[test]
fn reductions_agree() {
    agree(&cases(), 30);
}
