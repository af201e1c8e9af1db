//! The suite finds wrong kernels: each change of a kernel's source below makes it fail.

use pushpull_cuda::{Emulator, Optimizer, Source};

use crate::numbers::Numbers;
use crate::optimizers::{TERMS, drawn, optimizers};
use crate::reference;
use crate::runner::{OnDevice, Runner, compiler};

/// A change of the kernels of the optimizers.
struct Mutation {
    name: &'static str,
    from: &'static str,
    to: &'static str,
}

const MUTATIONS: [Mutation; 9] = [
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

/// Returns whether the suite accepts these kernels.
fn accepts(compiler: &pushpull_cuda::Compiler, kernels: &Source) -> bool {
    (0..4).all(|seed| {
        let mut numbers = Numbers(seed);
        optimizers().into_iter().all(|(optimizer, slots): (Optimizer, usize)| {
            // A kernel that has failed may have ended the emulator.
            let emulator = Emulator::start(compiler, seed).expect("the emulator starts");
            let mut runner = OnDevice::new(emulator, kernels).expect("the kernels can be compiled");
            let (state, gradient) = drawn(&mut numbers, slots, 600);
            let Ok(got) = runner.update(optimizer, TERMS[1], &state, &gradient, false) else { return false };
            let expected = reference::update(optimizer, TERMS[1], &state, &gradient);
            let same = |got: &[f32], expected: &[f64]| {
                got.iter().zip(expected).all(|(got, expected)| (f64::from(*got) - expected).abs() < 1e-5)
            };
            same(&got.value, &expected.value)
                && got.slots.iter().zip(&expected.slots).all(|(got, expected)| same(got, expected))
        })
    })
}

#[test]
fn every_mutation_is_found() {
    let Some(compiler) = compiler() else { return };
    assert!(accepts(&compiler, &Source::optimizer()), "the kernels as they are");
    for Mutation { name, from, to } in MUTATIONS {
        assert!(!accepts(&compiler, &Source::optimizer().with(from, to)), "not found: {name}");
    }
}
