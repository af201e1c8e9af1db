//! The suite finds wrong kernels: each change of a kernel's source below makes it fail.

use pushpull_cuda::{Compiler, Emulator, Epilogue, Optimizer, Source};
use pushpull_kernels::cpu::Padding;

use crate::case::{Case, agrees, source_of};
use crate::devices::compiler;
use crate::numbers::Numbers;
use crate::optimizers::{TERMS, drawn, optimizers};
use crate::rows::RowOperation;
use crate::runner::{OnDevice, Runner};
use crate::{chains, convolutions, products, reference};

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

/// Changes of the kernels of products.
const OF_PRODUCTS: [Mutation; 8] = [
    Mutation {
        name: "no barrier after the terms are written",
        from: "right.write(panels.right);\n            __syncthreads();",
        to: "right.write(panels.right);",
    },
    Mutation {
        name: "no barrier before the terms are written again",
        from: "            // The threads may still be reading the terms at hand.\n            __syncthreads();\n",
        to: "",
    },
    Mutation {
        name: "terms behind the last one",
        from: "line(at) < exist && first + term(at) < end;",
        to: "line(at) < exist;",
    },
    Mutation {
        name: "a transposed factor that is read as another one",
        from: "TRANSPOSE_A ? 1 : TERMS, TRANSPOSE_A ? ROWS : 1>",
        to: "TERMS, 1>",
    },
    Mutation {
        name: "a part that is left out",
        from: "part < PARTS; part += GROUPS",
        to: "part + 1 < PARTS; part += GROUPS",
    },
    Mutation {
        name: "no barrier after the sums of the parts",
        from: "sums[threadIdx.x] = sum;\n        __syncthreads();",
        to: "sums[threadIdx.x] = sum;",
    },
    Mutation {
        name: "no barrier before the sums of the parts are used again",
        from: "        // The threads may still be reading the sums of these elements.\n        __syncthreads();\n",
        to: "",
    },
    Mutation { name: "a negative number that stays", from: "sum < 0.0f ? 0.0f : sum", to: "sum" },
];

/// Changes of the kernels of convolutions.
const OF_CONVOLUTIONS: [Mutation; 6] = [
    Mutation {
        name: "padding that is off by one",
        from: "* X::STRIDE - X::BEFORE;",
        to: "* X::STRIDE - X::BEFORE + 1;",
    },
    Mutation {
        name: "an edge that is not seen",
        from: "inside_y && inside_x ? images",
        to: "inside_y ? images",
    },
    Mutation {
        name: "an image without its edge",
        from: "line.x + term.x < X::IMAGE",
        to: "line.x + term.x + 1 < X::IMAGE",
    },
    Mutation {
        name: "a class that begins at the wrong pixel",
        from: "first(multiples(A::BEFORE, number)),",
        to: "first(0),",
    },
    Mutation {
        name: "a kernel without its stride",
        from: "place % classes.x.places * C::X::STRIDE + classes.x.number",
        to: "place % classes.x.places + classes.x.number",
    },
    Mutation {
        name: "a block works on one tile",
        from: "item < NUMBER * PARTS * DOWN * ACROSS; item += gridDim.x",
        to: "item < NUMBER * PARTS * DOWN * ACROSS; item += NUMBER * PARTS * DOWN * ACROSS",
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
fn find_all_in(cases: Vec<Case>, mutations: &[Mutation]) {
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
fn every_mutation_of_products_is_found() {
    let mut numbers = Numbers(13);
    // Two blocks add the parts of three groups of elements.
    let cases =
        [([5, 2300, 14], [true, false], Epilogue::BiasRelu), ([66, 20, 3], [true, false], Epilogue::Bare)];
    let drawn = |(sizes, transposed, epilogue)| products::drawn(&mut numbers, sizes, transposed, epilogue);
    find_all_in(cases.map(drawn).to_vec(), &OF_PRODUCTS);
}

#[test]
fn every_mutation_of_convolutions_is_found() {
    let shapes = ([2, 5, 8, 2], [3, 4, 2, 3], [2, 2], Padding::Same);
    find_all_in(convolutions::all_of(shapes, Epilogue::Bare, 14).to_vec(), &OF_CONVOLUTIONS);
}
