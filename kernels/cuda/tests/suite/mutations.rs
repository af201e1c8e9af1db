//! The suite finds wrong kernels: each change of a kernel's source below makes it fail.

use pushpull_cuda::{Chain, Compiler, Emulator, Optimizer, RowOperation, Source};

use crate::chains;
use crate::numbers::Numbers;
use crate::optimizers::{TERMS, drawn, optimizers};
use crate::reference;
use crate::runner::{ChainCase, OnDevice, Runner, chains_of, compiler};

/// A change of kernels.
struct Mutation {
    name: &'static str,
    from: &'static str,
    to: &'static str,
}

/// Changes of the kernels of the optimizers.
const OF_OPTIMIZERS: [Mutation; 9] = [
    Mutation {
        name: "the last element is left out",
        from: "blockIdx.x * (Count)blockDim.x + threadIdx.x; at < (n);",
        to: "blockIdx.x * (Count)blockDim.x + threadIdx.x; at + 1 < (n);",
    },
    Mutation {
        name: "one element too many",
        from: "blockIdx.x * (Count)blockDim.x + threadIdx.x; at < (n);",
        to: "blockIdx.x * (Count)blockDim.x + threadIdx.x; at <= (n);",
    },
    Mutation {
        name: "all blocks work on the same elements",
        from: "blockIdx.x * (Count)blockDim.x + threadIdx.x; at < (n);",
        to: "threadIdx.x; at < (n);",
    },
    Mutation {
        name: "no barrier after the numbers are written",
        from: "sums[threadIdx.x] = own;\n    __syncthreads();",
        to: "sums[threadIdx.x] = own;",
    },
    Mutation {
        name: "no barrier between the halves",
        from: "sums[threadIdx.x + half];\n        __syncthreads();",
        to: "sums[threadIdx.x + half];",
    },
    Mutation {
        name: "no barrier before the sums are used again",
        from: "    // The threads may still be reading the sums of an earlier call.\n    __syncthreads();\n",
        to: "",
    },
    Mutation {
        name: "a barrier that only some threads reach",
        from: "sums[threadIdx.x + half];\n        __syncthreads();",
        to: "sums[threadIdx.x + half];\n        if (threadIdx.x < half) __syncthreads();",
    },
    Mutation {
        name: "shared memory that is too small",
        from: "__shared__ double sums[LANES];",
        to: "__shared__ double sums[LANES - 1];",
    },
    Mutation {
        name: "a decay without its gradient",
        from: "decay * velocities[at] + gradient",
        to: "decay * velocities[at]",
    },
];

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

/// Changes of the kernels of chains.
const OF_CHAINS: [Mutation; 5] = [
    Mutation { name: "a slope that is lost", from: "dy : slope * dy", to: "dy : dy" },
    Mutation { name: "a gradient where there is none", from: "y > 0.0f ? dy : 0.0f", to: "dy" },
    Mutation { name: "a magnitude without its sign", from: "x < 0.0f ? -dy : dy", to: "dy" },
    Mutation { name: "a sigmoid of the magnitude", from: "(x < 0.0f ? small : 1.0f)", to: "1.0f" },
    Mutation { name: "a square that is not doubled", from: "2.0f * x * dy", to: "x * dy" },
];

/// Returns a device with these kernels. A kernel that has failed may have ended an earlier one.
fn device(compiler: &Compiler, kernels: &Source, seed: u64) -> OnDevice<Emulator> {
    let emulator = Emulator::start(compiler, seed).expect("the emulator starts");
    OnDevice::new(emulator, std::slice::from_ref(kernels)).expect("the kernels can be compiled")
}

fn same(got: &[f32], expected: &[f64]) -> bool {
    got.iter().zip(expected).all(|(got, expected)| (f64::from(*got) - expected).abs() < 1e-5)
}

/// Returns whether these kernels of optimizers agree with the reference, whatever the order of the threads.
fn updates_agree(compiler: &Compiler, kernels: &Source) -> bool {
    (0..4).all(|seed| {
        let mut numbers = Numbers(seed);
        optimizers().into_iter().all(|(optimizer, slots): (Optimizer, usize)| {
            let (state, gradient) = drawn(&mut numbers, slots, 600);
            let got = device(compiler, kernels, seed).update(optimizer, TERMS[1], &state, &gradient, false);
            let expected = reference::update(optimizer, TERMS[1], &state, &gradient);
            got.is_ok_and(|got| {
                let mut slots = got.slots.iter().zip(&expected.slots);
                same(&got.value, &expected.value) && slots.all(|(got, expected)| same(got, expected))
            })
        })
    })
}

/// Returns whether these kernels of rows agree with the reference, whatever the order of the threads.
fn rows_agree(compiler: &Compiler, kernels: &Source) -> bool {
    (0..4).all(|seed| {
        let mut numbers = Numbers(seed);
        // Two blocks work on five rows, which have more elements than a warp has threads.
        let inputs = [(); 2].map(|()| numbers.between(-1.0, 1.0, 5 * 90));
        let got = device(compiler, kernels, seed).softmax_grad_by(2, [&inputs[0], &inputs[1]], 90);
        let expected = reference::rows(RowOperation::SoftmaxGrad, &inputs, 90);
        if !got.is_ok_and(|got| same(&got, &expected)) {
            return false;
        }
        [(RowOperation::Softmax, 3, 90), (RowOperation::CausalSoftmax, 5, 5)].into_iter().all(
            |(operation, rows, n)| {
                let inputs = [numbers.between(-1.0, 1.0, rows * n)];
                let got = device(compiler, kernels, seed).rows(operation, &inputs, n);
                got.is_ok_and(|got| same(&got, &reference::rows(operation, &inputs, n)))
            },
        )
    })
}

/// Returns whether these kernels of chains agree with the reference.
fn chains_agree(compiler: &Compiler, kernels: &Source, cases: &[ChainCase]) -> bool {
    let close = |(got, case): (&Vec<f32>, &ChainCase)| {
        let close = |(got, expected): (&f32, f64)| {
            (f64::from(*got) - expected).abs() <= 1e-4 * expected.abs().max(1.0)
        };
        got.iter().zip(reference::chain(case)).all(close)
    };
    let emulator = Emulator::start(compiler, 0).expect("the emulator starts");
    let mut device = OnDevice::new(emulator, &[]).expect("there is nothing to compile");
    device.chains_with(kernels, cases).is_ok_and(|all| all.iter().zip(cases).all(close))
}

/// Checks that `agree` accepts the kernels as they are, and none of the mutations.
fn find_all(kernels: &Source, mutations: &[Mutation], agree: impl Fn(&Source) -> bool) {
    assert!(agree(kernels), "the kernels as they are");
    for Mutation { name, from, to } in mutations {
        assert!(!agree(&kernels.with(from, to)), "not found: {name}");
    }
}

#[test]
fn every_mutation_of_optimizers_is_found() {
    let Some(compiler) = compiler() else { return };
    find_all(&Source::optimizer(), &OF_OPTIMIZERS, |kernels| updates_agree(&compiler, kernels));
}

#[test]
fn every_mutation_of_rows_is_found() {
    let Some(compiler) = compiler() else { return };
    find_all(&Source::rows(), &OF_ROWS, |kernels| rows_agree(&compiler, kernels));
}

#[test]
fn every_mutation_of_chains_is_found() {
    let Some(compiler) = compiler() else { return };
    let mut numbers = Numbers(11);
    let cases: Vec<ChainCase> = (0..40).map(|_| chains::drawn(&mut numbers)).collect();
    let kernels = Chain::source("chains", &chains_of(&cases));
    find_all(&kernels, &OF_CHAINS, |kernels| chains_agree(&compiler, kernels, &cases));
}
