//! The suite finds wrong kernels: each change of a kernel's source below makes it fail.

use pushpull_cuda::{Compiler, Emulator, Optimizer, Source};

use crate::case::{Case, agrees, source_of};
use crate::devices::compiler;
use crate::numbers::Numbers;
use crate::optimizers::{TERMS, drawn, optimizers};
use crate::rows::RowOperation;
use crate::runner::{OnDevice, Runner};
use crate::{chains, norms, pools, reference};

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

/// Changes of the functions of pooling.
const OF_POOLS: [Mutation; 6] = [
    Mutation { name: "a tie that goes to the last pixel", from: "number > largest", to: "number >= largest" },
    Mutation { name: "a NaN that is not the maximum", from: " || number != number", to: "" },
    Mutation {
        name: "a window that is cut off too late",
        from: "return pixel < input",
        to: "return pixel <= input",
    },
    Mutation {
        name: "a mean that counts the padding",
        from: "(end < before + input ? end : before + input)",
        to: "end",
    },
    Mutation {
        name: "a gradient without its last window",
        from: "(pixel + before) / stride + 1;",
        to: "(pixel + before) / stride;",
    },
    Mutation {
        name: "a gradient of a window without the pixel",
        from: "(pixel + before - window) / stride + 1;",
        to: "(pixel + before - window) / stride;",
    },
];

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
    Mutation { name: "a warp works on one row", from: "row += gridDim.x *", to: "row += (rows) + 0 *" },
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

#[test]
fn every_mutation_of_chains_is_found() {
    find_all_in(chains::cases(11, 40), &OF_CHAINS);
}

#[test]
fn every_mutation_of_pools_is_found() {
    let (mut numbers, sizes) = (Numbers(13), pools::SIZES[1]);
    let count = sizes.0.iter().product();
    let mut x = pools::ties(&mut numbers, count);
    // It is the last pixel of an image.
    x[count / 2 - 1] = f32::NAN;
    let maxima = pools::maxima(sizes, &x, &mut numbers);
    let x = numbers.between(-1.0, 1.0, count);
    let means = pools::means(sizes, &x, &mut numbers);
    find_all_in([maxima, means].concat(), &OF_POOLS);
}

#[test]
fn every_mutation_of_norms_is_found() {
    let (mut numbers, shape, rows) = (Numbers(14), [129, 33], [19, 40]);
    let x = numbers.between(0.5, 1.5, shape.iter().product());
    let mut cases = vec![norms::moments(shape, &x)];
    cases.extend(norms::batch(shape, &x, &mut numbers));
    let x = numbers.between(0.5, 1.5, rows.iter().product());
    cases.extend(norms::layer(rows, &x, &mut numbers));
    find_all_in(cases, &OF_NORMS);
}
