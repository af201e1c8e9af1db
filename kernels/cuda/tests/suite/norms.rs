//! Moments and normalisations agree with those of the processor, on every device.

use pushpull_cuda::Operation;
use pushpull_kernels::cpu::{self, Threads};

use crate::case::{Case, Data, agree};
use crate::mutations::{Mutation, find_all_in};
use crate::numbers::Numbers;

const EPSILON: f32 = 1e-3;

/// Shapes of matrices: with and without tails, and with one or several chunks of rows.
const SHAPES: [[usize; 2]; 12] = [
    [0, 3],
    [4, 0],
    [1, 1],
    [5, 300],
    [8, 33],
    [70, 10],
    [128, 32],
    [129, 33],
    [300, 5],
    [1100, 3],
    [4200, 1],
    [3, 1100],
];

fn data<const N: usize>(tensors: [&[f32]; N]) -> Vec<Data> {
    tensors.map(|numbers| Data::F32(numbers.to_vec())).to_vec()
}

fn unknown<const N: usize>(lengths: [usize; N]) -> [Vec<f32>; N] {
    lengths.map(|length| vec![f32::NAN; length])
}

/// Returns the case of the moments of each column, with the moments in `f64` as reference.
pub(crate) fn moments([rows, n]: [usize; 2], x: &[f32]) -> Case {
    let [mut mean, mut variance] = unknown([n, n]);
    let scratch = &mut vec![f32::NAN; cpu::norm_scratch([rows, n])];
    cpu::column_moments(&mut mean, &mut variance, x, scratch, Threads::One);
    let average = |column: usize, f: &dyn Fn(f64) -> f64| {
        x.iter().skip(column).step_by(n).map(|&x| f(x.into())).sum::<f64>() / rows as f64
    };
    let means: Vec<f64> = (0..n).map(|column| average(column, &|x| x)).collect();
    let variances = (0..n).map(|column| average(column, &|x| (x - means[column]).powi(2))).collect();
    let name = format!("moments of {rows} rows of {n}");
    let case = Case::new(name, Operation::moments([rows, n]), data([x]), data([&mean, &variance]));
    Case { reference: Some(vec![means, variances]), ..case }
}

/// Returns the cases of a batch norm: the deviations, the norm and its gradient.
pub(crate) fn batch(shape @ [rows, n]: [usize; 2], x: &[f32], numbers: &mut Numbers) -> Vec<Case> {
    let scratch = &mut vec![f32::NAN; cpu::norm_scratch(shape)];
    let (mean, variance) = (numbers.between(-0.1, 0.1, n), numbers.between(0.1, 1.0, n));
    let [gamma, beta] = [0; 2].map(|_| numbers.between(-1.0, 1.0, n));
    let dy = numbers.between(-1.0, 1.0, rows * n);
    let [mut deviation, mut y, mut dx, mut dgamma, mut dbeta] = unknown([n, rows * n, rows * n, n, n]);
    cpu::reciprocal_stddev(&mut deviation, &variance, EPSILON);
    cpu::batch_norm(&mut y, x, [&mean, &deviation], [&gamma, &beta], Threads::One);
    let sums = [&mut dgamma[..], &mut dbeta];
    cpu::batch_norm_grad(&mut dx, sums, [x, &dy], [&mean, &deviation], &gamma, scratch, Threads::One);
    let name = |what: &str| format!("{what} of {rows} rows of {n}");
    let operation = Operation::reciprocal_stddev(n, EPSILON);
    let deviations = Case::new(name("deviations"), operation, data([&variance]), data([&deviation]));
    let inputs = data([x, &mean, &deviation, &gamma, &beta]);
    let norm = Case::new(name("batch norm"), Operation::batch_norm(rows, n), inputs, data([&y]));
    let inputs = data([x, &dy, &mean, &deviation, &gamma]);
    let operation = Operation::batch_norm_grad(shape);
    let gradient = Case::new(name("batch norm's gradient"), operation, inputs, data([&dx, &dgamma, &dbeta]));
    vec![deviations, norm, with_sums(gradient, rows)]
}

/// Returns the cases of a layer norm and of its gradient.
pub(crate) fn layer(shape @ [rows, n]: [usize; 2], x: &[f32], numbers: &mut Numbers) -> Vec<Case> {
    // Without columns, no rows can be counted.
    let rows = if n == 0 { 0 } else { rows };
    let scratch = &mut vec![f32::NAN; cpu::norm_scratch(shape)];
    let [gamma, beta] = [0; 2].map(|_| numbers.between(-1.0, 1.0, n));
    let dy = numbers.between(-1.0, 1.0, rows * n);
    let [mut y, mut mean, mut deviation] = unknown([rows * n, rows, rows]);
    cpu::layer_norm(&mut y, [&mut mean, &mut deviation], x, [&gamma, &beta], EPSILON, Threads::One);
    let [mut dx, mut dgamma, mut dbeta] = unknown([rows * n, n, n]);
    let sums = [&mut dgamma[..], &mut dbeta];
    cpu::layer_norm_grad(&mut dx, sums, [x, &dy], [&mean, &deviation], &gamma, scratch, Threads::One);
    let name = |what: &str| format!("{what} of {rows} rows of {n}");
    let inputs = data([x, &gamma, &beta]);
    let operation = Operation::layer_norm(shape, EPSILON);
    let norm = Case::new(name("layer norm"), operation, inputs, data([&y, &mean, &deviation]));
    let inputs = data([x, &dy, &mean, &deviation, &gamma]);
    let operation = Operation::layer_norm_grad(shape);
    let gradient = Case::new(name("layer norm's gradient"), operation, inputs, data([&dx, &dgamma, &dbeta]));
    vec![Case { tolerance: 1e-4, ..norm }, with_sums(gradient, rows)]
}

/// Returns a case with a tolerance for sums of this number of terms, which have as many errors of rounding.
fn with_sums(case: Case, terms: usize) -> Case {
    Case { tolerance: 1e-4 + 1e-7 * terms as f64, ..case }
}

/// Returns all cases.
pub(crate) fn cases() -> Vec<Case> {
    let (mut numbers, mut cases) = (Numbers(50), Vec::new());
    for shape @ [rows, n] in SHAPES {
        let x = numbers.between(-1.0, 1.0, rows * n);
        cases.push(moments(shape, &x));
        cases.extend(batch(shape, &x, &mut numbers));
        // The emulator needs long for many rows.
        if rows <= 150 {
            cases.extend(layer(shape, &x, &mut numbers));
        }
    }
    cases
}

#[test]
fn norms_agree() {
    agree(&cases(), 50);
}

#[test]
fn moments_far_from_0_keep_their_digits() {
    let mut numbers = Numbers(51);
    let far = [[150, 33], [5, 3], [1100, 3]].map(|[rows, n]| {
        let x = numbers.between(999.0, 1001.0, rows * n);
        moments([rows, n], &x)
    });
    agree(&far, 51);
}

#[test]
fn a_number_that_is_not_finite_spoils_its_own_column_or_row() {
    let (mut numbers, shape) = (Numbers(52), [140, 33]);
    let mut x = numbers.between(-1.0, 1.0, 140 * 33);
    (x[5], x[33 * 100 + 9]) = (f32::NAN, f32::NAN);
    let mut cases = vec![moments(shape, &x)];
    (x[0], x[33 * 139 + 32]) = (f32::INFINITY, f32::NEG_INFINITY);
    cases.extend([batch(shape, &x, &mut numbers), layer(shape, &x, &mut numbers)].concat());
    agree(&cases, 52);
}

/// Changes of the kernels of norms and of columns.
const OF_NORMS: [Mutation; 9] = [
    Mutation {
        name: "a block works on one item",
        from: "item += gridDim.x",
        to: "item += tiles * all.chunks",
    },
    Mutation {
        name: "the last row of a chunk is left out",
        from: "end = start + all.chunk;",
        to: "end = start + all.chunk - 1;",
    },
    Mutation { name: "a line is left out", from: "half >= all.width", to: "half > all.width" },
    Mutation {
        name: "no barrier before the lines are merged",
        from: "merged[threadIdx.x] = read(share);\n        __syncthreads();",
        to: "merged[threadIdx.x] = read(share);",
    },
    Mutation {
        name: "no barrier between the halves",
        from: "merged[threadIdx.x + half]);\n            __syncthreads();",
        to: "merged[threadIdx.x + half]);",
    },
    Mutation {
        name: "squares without the distance of the means",
        from: "other.squares + delta * delta * (count * share)",
        to: "other.squares",
    },
    Mutation {
        name: "the last chunk counts as much as the others",
        from: "(float)(left < each ? left : each)",
        to: "(float)each",
    },
    Mutation {
        name: "a variance without its mean",
        from: "squares += (x[at] - mean) * (x[at] - mean)",
        to: "squares += x[at] * x[at]",
    },
    Mutation { name: "threads work on one row", from: "row += gridDim.x *", to: "row += (rows) + 0 *" },
];

#[test]
fn every_mutation_of_norms_is_found() {
    let (mut numbers, shape, rows) = (Numbers(14), [129, 33], [19, 40]);
    let x = numbers.between(0.5, 1.5, shape.iter().product());
    let mut cases = vec![moments(shape, &x)];
    cases.extend(batch(shape, &x, &mut numbers));
    let x = numbers.between(0.5, 1.5, rows.iter().product());
    cases.extend(layer(rows, &x, &mut numbers));
    find_all_in(cases, &OF_NORMS);
}
