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

/// Numbers of rows and of their elements. The threads that share a row are 1, 2, …, 32, or a block.
const SIZES: [(usize, usize); 17] = [
    (0, 5),
    (3, 1),
    (300, 1),
    (130, 2),
    (5, 8),
    (70, 8),
    (33, 10),
    (17, 16),
    (3, 17),
    (3, 31),
    (9, 32),
    (3, 33),
    (3, 300),
    (2, 1023),
    (9, 1024),
    (3, 1025),
    (1, 1300),
];

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
            CausalSoftmax => vec![(0, 5), (1, 1), (300, 2), (66, 33), (20, 10), (48, 16)],
            _ => SIZES.to_vec(),
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
const OF_ROWS: [Mutation; 17] = [
    Mutation {
        name: "half of the numbers of a warp are left out",
        from: "for (unsigned distance = 16; distance > 0;",
        to: "for (unsigned distance = 8; distance > 0;",
    },
    Mutation { name: "numbers of other rows", from: "if (distance < lanes)", to: "if (distance <= lanes)" },
    Mutation {
        name: "neighbours that are left out",
        from: "if (distance < lanes)",
        to: "if (distance * 2 < lanes)",
    },
    Mutation {
        name: "a warp is left out",
        from: "for (int warp = 1; warp < WARPS; warp++)",
        to: "for (int warp = 2; warp < WARPS; warp++)",
    },
    Mutation {
        name: "no barrier after the numbers of the warps",
        from: "of_warps[threadIdx.x / 32] = own;\n    __syncthreads();",
        to: "of_warps[threadIdx.x / 32] = own;",
    },
    Mutation {
        name: "no barrier before the numbers of the warps are used again",
        from: "    // The threads may still be reading the numbers of an earlier call.\n    __syncthreads();\n",
        to: "",
    },
    Mutation {
        name: "a shuffle that only half of the neighbours make",
        from: "#pragma unroll\n    for (unsigned distance = 16;",
        to: "if (lanes == 1 || threadIdx.x % lanes < lanes / 2)\n    for (unsigned distance = 16;",
    },
    Mutation {
        name: "a shuffle with a mask of nobody",
        from: "#define ALL 0xFFFFFFFFu",
        to: "#define ALL 0u",
    },
    Mutation {
        name: "a shuffle with too few lanes",
        from: "ALL >> (32 - lanes) << (threadIdx.x & (32 - lanes))",
        to: "ALL >> (32 - lanes / 2) << (threadIdx.x & (32 - lanes))",
    },
    Mutation {
        name: "a shuffle with lanes that have no row",
        from: "ALL >> (32 - lanes) << (threadIdx.x & (32 - lanes))",
        to: "ALL",
    },
    Mutation {
        name: "a shuffle with the lanes of the first row",
        from: "ALL >> (32 - lanes) << (threadIdx.x & (32 - lanes))",
        to: "ALL >> (32 - lanes)",
    },
    Mutation {
        name: "a warp of rows for a block",
        from: "return lanes > 32 ? sum",
        to: "return lanes > 256 ? sum",
    },
    Mutation { name: "threads work on one row", from: "row += gridDim.x *", to: "row += (rows) + 0 *" },
    Mutation { name: "a row beyond the last one", from: "row < (rows);", to: "row <= (rows);" },
    Mutation {
        name: "rows that are left out",
        from: "Count row = blockIdx.x * (Count)(LANES / (lanes))",
        to: "Count row = blockIdx.x * (Count)LANES",
    },
    Mutation {
        name: "elements that are left out",
        from: "at < (n); at += (lanes))",
        to: "at < (n); at += LANES)",
    },
    Mutation { name: "a row that sees too little", from: "row % n + 1", to: "row % n" },
];

#[test]
fn every_mutation_of_rows_is_found() {
    let mut numbers = Numbers(12);
    // Rows have more elements than threads share them. Of those that share a warp, some are missing.
    let sizes = [
        (RowOperation::SoftmaxGrad, 41, 6),
        (RowOperation::SoftmaxGrad, 19, 90),
        (RowOperation::Softmax, 3, 90),
        (RowOperation::CausalSoftmax, 5, 5),
        (RowOperation::SoftmaxGrad, 3, 1200),
    ];
    find_all_in(sizes.map(|(operation, rows, n)| operation.drawn(&mut numbers, rows, n)).to_vec(), &OF_ROWS);
}
