//! The suite finds wrong kernels: each change of a kernel's source below makes it fail.

use pushpull_cuda::{Compiler, Emulator, Source};
use pushpull_kernels::cpu::OptimizerStep;

use crate::case::{Case, agrees, source_of};
use crate::devices::compiler;
use crate::numbers::Numbers;
use crate::optimizers::{TERMS, drawn, optimizers};
use crate::reference;
use crate::runner::{OnDevice, Runner};

/// A change of kernels.
pub(crate) struct Mutation {
    pub name: &'static str,
    pub from: &'static str,
    pub to: &'static str,
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
        from: "all[threadIdx.x] = own;\n    __syncthreads();",
        to: "all[threadIdx.x] = own;",
    },
    Mutation {
        name: "no barrier between the halves",
        from: "all[threadIdx.x + half];\n        __syncthreads();",
        to: "all[threadIdx.x + half];",
    },
    Mutation {
        name: "no barrier before the sums are used again",
        from: "    // The threads may still be reading the sum of an earlier call.\n    __syncthreads();\n",
        to: "",
    },
    Mutation {
        name: "a barrier that only some threads reach",
        from: "all[threadIdx.x + half];\n        __syncthreads();",
        to: "all[threadIdx.x + half];\n        if (threadIdx.x < half) __syncthreads();",
    },
    Mutation {
        name: "shared memory that is too small",
        from: "__shared__ double all[LANES];",
        to: "__shared__ double all[LANES - 1];",
    },
    Mutation {
        name: "a decay without its gradient",
        from: "decay * velocities[at] + gradient",
        to: "decay * velocities[at]",
    },
];

/// Returns a device with these kernels. A kernel that has failed may have ended an earlier one.
fn device(compiler: &Compiler, kernels: &Source, seed: u64) -> OnDevice {
    let emulator = Emulator::start(compiler, seed).expect("the emulator starts");
    OnDevice::new(Box::new(emulator), std::slice::from_ref(kernels)).expect("the kernels can be compiled")
}

fn same(got: &[f32], expected: &[f64]) -> bool {
    got.iter().zip(expected).all(|(got, expected)| (f64::from(*got) - expected).abs() < 1e-5)
}

/// Returns whether these kernels of optimizers agree with the reference, whatever the order of the threads.
fn updates_agree(compiler: &Compiler, kernels: &Source) -> bool {
    (0..4).all(|seed| {
        let mut numbers = Numbers(seed);
        optimizers().into_iter().all(|(optimizer, slots): (OptimizerStep, usize)| {
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

/// Returns whether these kernels agree on all cases, whatever the order of the threads. If a case has more
/// than one row, two blocks work on all of them.
fn cases_agree(compiler: &Compiler, kernels: &Source, cases: &[Case]) -> bool {
    (0..4).all(|seed| {
        let mut emulator = Emulator::start(compiler, seed).expect("the emulator starts");
        agrees(&mut emulator, kernels, cases)
    })
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

/// Checks that the kernels of these cases agree, and are not found to agree after any of the mutations.
pub(crate) fn find_all_in(cases: Vec<Case>, mutations: &[Mutation]) {
    let Some(compiler) = compiler() else { return };
    let few_blocks = |case: Case| Case { operation: case.operation.with_blocks_at_most(2), ..case };
    let cases: Vec<Case> = cases.into_iter().map(few_blocks).collect();
    find_all(&source_of(&cases), mutations, |kernels| cases_agree(&compiler, kernels, &cases));
}
