//! Operations on rows agree with their reference, on every device.

use pushpull_cuda::Operation;
use pushpull_kernels::cpu::{self, Threads};

use crate::case::{Case, Data, agree};
use crate::mutations::{Mutation, find_all_in};
use crate::numbers::Numbers;
use crate::reference;

/// An operation on each row of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowOperation {
    Softmax,
    CausalSoftmax,
    SoftmaxGrad,
    LogSoftmax,
    LogSoftmaxGrad,
}

use RowOperation::{CausalSoftmax, LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad};

const OPERATIONS: [RowOperation; 5] = [Softmax, CausalSoftmax, SoftmaxGrad, LogSoftmax, LogSoftmaxGrad];

impl RowOperation {
    /// Returns the number of matrices that the operation reads.
    const fn inputs(self) -> usize {
        match self {
            Softmax | CausalSoftmax | LogSoftmax => 1,
            SoftmaxGrad | LogSoftmaxGrad => 2,
        }
    }

    /// Returns the case of the suite for rows of `n` elements.
    pub(crate) fn case(self, inputs: &[Vec<f32>], n: usize) -> Case {
        let (x, dy) = (&inputs[0], inputs.last().expect("an input"));
        let rows = x.len() / n;
        let mut to = vec![f32::NAN; x.len()];
        let operation = match self {
            Softmax => {
                cpu::softmax(&mut to, x, n, Threads::One);
                Operation::softmax(rows, n)
            }
            CausalSoftmax => {
                cpu::causal_softmax(&mut to, x, n, Threads::One);
                Operation::causal_softmax(rows, n)
            }
            SoftmaxGrad => {
                cpu::softmax_grad(&mut to, x, dy, n, Threads::One);
                Operation::softmax_grad(rows, n)
            }
            LogSoftmax => {
                cpu::log_softmax(&mut to, x, n, Threads::One);
                Operation::log_softmax(rows, n)
            }
            LogSoftmaxGrad => {
                cpu::log_softmax_grad(&mut to, x, dy, n, Threads::One);
                Operation::log_softmax_grad(rows, n)
            }
        };
        let reference = Some(vec![reference::rows(self, inputs, n)]);
        let inputs = inputs.iter().cloned().map(Data::F32).collect();
        let case = Case::new(format!("{self:?} of rows of {n}"), operation, inputs, vec![Data::F32(to)]);
        // A sum of n numbers has about n errors of rounding.
        Case { reference, tolerance: 1e-5 + 1e-7 * n as f64, ..case }
    }

    /// Returns a case of random numbers.
    pub(crate) fn drawn(self, numbers: &mut Numbers, rows: usize, n: usize) -> Case {
        let draw = |_| numbers.between(-3.0, 3.0, rows * n);
        self.case(&(0..self.inputs()).map(draw).collect::<Vec<_>>(), n)
    }
}

/// Returns cases of every operation.
pub(crate) fn cases() -> Vec<Case> {
    let (mut numbers, mut cases) = (Numbers(7), Vec::new());
    for operation in OPERATIONS {
        // The rows of causal softmax form square matrices.
        let sizes = match operation {
            CausalSoftmax => vec![(0, 5), (1, 1), (66, 33), (20, 10)],
            _ => vec![(0, 5), (3, 1), (3, 31), (3, 32), (3, 33), (3, 300), (9, 7 + numbers.below(30))],
        };
        cases.extend(sizes.into_iter().map(|(rows, n)| operation.drawn(&mut numbers, rows, n)));
    }
    cases
}

#[test]
fn operations_on_rows_agree_with_their_reference() {
    agree(&cases(), 7);
}

#[test]
fn large_logits_do_not_overflow() {
    let large = vec![vec![1e4, -1e4, 9.999e3, 0.0, 300.0, -300.0]];
    agree(&[Softmax.case(&large, 6), LogSoftmax.case(&large, 3)], 8);
}

#[test]
fn a_row_that_is_not_finite_spoils_no_other() {
    let mut x = Numbers(9).between(-1.0, 1.0, 5 * 40);
    (x[3], x[47], x[125]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
    x[160..200].fill(f32::NEG_INFINITY);
    let x = [x];
    agree(&[Softmax.case(&x, 40), LogSoftmax.case(&x, 40)], 9);
}

/// Changes of the kernels of rows.
const OF_ROWS: [Mutation; 8] = [
    Mutation {
        name: "half of the sums of a warp are left out",
        from: "for (int distance = 16; distance > 0; distance /= 2) own += ",
        to: "for (int distance = 8; distance > 0; distance /= 2) own += ",
    },
    Mutation {
        name: "a warp is left out",
        from: "for (int warp = 1; warp < WARPS; warp++) own += sums[warp];",
        to: "for (int warp = 2; warp < WARPS; warp++) own += sums[warp];",
    },
    Mutation {
        name: "no barrier after the sums of the warps",
        from: "sums[threadIdx.x / 32] = own;\n    __syncthreads();",
        to: "sums[threadIdx.x / 32] = own;",
    },
    Mutation {
        name: "a shuffle that only half of a warp makes",
        from: "for (int distance = 16; distance > 0; distance /= 2) own += ",
        to: "if (threadIdx.x % 32 < 16)\n        for (int distance = 8; distance > 0; distance /= 2) own += ",
    },
    Mutation {
        name: "a shuffle with a mask of nobody",
        from: "#define ALL 0xFFFFFFFFu",
        to: "#define ALL 0u",
    },
    Mutation { name: "a block works on one row", from: "row += gridDim.x", to: "row += rows" },
    Mutation {
        name: "no barrier before the sums of the warps are used again",
        from: "    // The threads may still be reading the sums of an earlier call.\n    __syncthreads();\n",
        to: "",
    },
    Mutation { name: "a row that sees too little", from: "row % n + 1", to: "row % n" },
];

#[test]
fn every_mutation_of_rows_is_found() {
    let mut numbers = Numbers(12);
    // Rows have more elements than a warp has threads.
    let sizes = [
        (RowOperation::SoftmaxGrad, 5, 90),
        (RowOperation::Softmax, 3, 90),
        (RowOperation::CausalSoftmax, 5, 5),
    ];
    find_all_in(sizes.map(|(operation, rows, n)| operation.drawn(&mut numbers, rows, n)).to_vec(), &OF_ROWS);
}
