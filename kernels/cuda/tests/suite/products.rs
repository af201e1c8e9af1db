//! Products of matrices agree with those of the processor, on every device.

use pushpull_cuda::{Epilogue, Multiplier, Operation};
use pushpull_kernels::cpu::{self, Product, Threads};

use crate::case::{Case, Data, agree};
use crate::mutations::{Mutation, find_all_in};
use crate::numbers::Numbers;

/// Sizes `[m, k, n]` of products, around the sizes of all tiles.
const SIZES: [[usize; 3]; 10] = [
    [1, 1, 1],
    [3, 0, 5],
    [0, 4, 3],
    [2, 5, 0],
    [64, 16, 64],
    [65, 17, 63],
    [100, 20, 30],
    [30, 20, 100],
    [257, 18, 10],
    [10, 31, 260],
];

/// Sizes of products whose sums are divided into parts.
const LONG: [[usize; 3]; 3] = [[5, 300, 7], [70, 257, 65], [20, 2200, 3]];

const TRANSPOSED: [[bool; 2]; 4] = [[false, false], [true, false], [false, true], [true, true]];

/// Returns the case of a product, which begins with the bias if `epilogue` has one.
fn case(sizes: [usize; 3], transposed: [bool; 2], epilogue: Epilogue, inputs: [&[f32]; 3]) -> Case {
    let [a, b, bias] = inputs;
    let product = Product::new(sizes, transposed[0], transposed[1]).unwrap();
    let [m, k, n] = sizes;
    let (mut output, mut scratch) = (vec![f32::NAN; m * n], vec![f32::NAN; product.scratch(Threads::One)]);
    let of_cpu = match epilogue {
        Epilogue::Bare => cpu::Epilogue::Bare,
        Epilogue::Bias => cpu::Epilogue::Bias(bias),
        Epilogue::BiasRelu => cpu::Epilogue::BiasRelu(bias),
    };
    cpu::matmul(&mut output, a, b, &product, of_cpu, &mut scratch, Threads::One);
    let mut inputs = vec![Data::F32(a.to_vec()), Data::F32(b.to_vec())];
    if epilogue != Epilogue::Bare {
        inputs.push(Data::F32(bias.to_vec()));
    }
    let name = format!("{sizes:?}, transposed {transposed:?}, {epilogue:?}");
    let operation = Operation::product(&product, epilogue, Multiplier::Own);
    let case = Case::new(name, operation, inputs, vec![Data::F32(output)]);
    Case { tolerance: tolerance(k), ..case }
}

/// Returns how far a sum of this number of terms may be from the expected one. Two orders of additions
/// differ.
pub(crate) fn tolerance(terms: usize) -> f64 {
    1e-6 * (terms as f64).sqrt().max(10.0)
}

/// Returns the case of a product of random numbers.
pub(crate) fn drawn(
    numbers: &mut Numbers,
    sizes: [usize; 3],
    transposed: [bool; 2],
    epilogue: Epilogue,
) -> Case {
    let [m, k, n] = sizes;
    let [a, b, bias] = [m * k, k * n, n].map(|count| numbers.between(-1.0, 1.0, count));
    case(sizes, transposed, epilogue, [&a, &b, &bias])
}

/// Returns the case of a batch of products of random numbers.
fn batch(numbers: &mut Numbers, batch: usize, sizes: [usize; 3], transposed: [bool; 2]) -> Case {
    let product = Product::new(sizes, transposed[0], transposed[1]).unwrap();
    let [m, k, n] = sizes;
    let [a, b] = [m * k, k * n].map(|count| numbers.between(-1.0, 1.0, batch * count));
    let mut output = vec![f32::NAN; batch * m * n];
    let mut scratch = vec![f32::NAN; cpu::batched_matmul_scratch(batch, &product, Threads::One)];
    cpu::batched_matmul(&mut output, &a, &b, batch, &product, &mut scratch, Threads::One);
    let name = format!("{batch} times {sizes:?}, transposed {transposed:?}");
    let operation = Operation::batched_product(batch, &product, Multiplier::Own);
    let case = Case::new(name, operation, vec![Data::F32(a), Data::F32(b)], vec![Data::F32(output)]);
    Case { tolerance: tolerance(k), ..case }
}

fn products() -> Vec<Case> {
    let (mut numbers, mut cases) = (Numbers(40), Vec::new());
    for (at, sizes) in SIZES.into_iter().chain(LONG).enumerate() {
        cases.push(drawn(&mut numbers, sizes, TRANSPOSED[at % 4], Epilogue::Bare));
        let epilogue = [Epilogue::Bias, Epilogue::BiasRelu][at % 2];
        cases.push(drawn(&mut numbers, sizes, TRANSPOSED[(at + 1) % 4], epilogue));
    }
    for transposed in TRANSPOSED {
        cases.push(drawn(&mut numbers, [66, 35, 70], transposed, Epilogue::Bare));
    }
    cases
}

fn batches() -> Vec<Case> {
    let mut numbers = Numbers(41);
    let cases = [
        (3, [5, 7, 6], TRANSPOSED[0]),
        (3, [6, 7, 5], TRANSPOSED[3]),
        (0, [2, 3, 4], TRANSPOSED[0]),
        (4, [3, 0, 2], TRANSPOSED[0]),
        (2, [9, 270, 70], TRANSPOSED[1]),
        // These have the largest tiles.
        (128, [66, 5, 97], TRANSPOSED[2]),
    ];
    cases.map(|(count, sizes, transposed)| batch(&mut numbers, count, sizes, transposed)).to_vec()
}

/// Returns cases in which numbers that are not finite must reach their own row and column only.
fn not_finite() -> Vec<Case> {
    let mut cases = Vec::new();
    for sizes @ [m, k, n] in [[5, 7, 6], [6, 300, 5]] {
        for transposed in [TRANSPOSED[0], TRANSPOSED[3]] {
            let [mut a, mut b, mut bias] =
                [m * k, k * n, n].map(|count| Numbers(42).between(-1.0, 1.0, count));
            let last = a.len() - 1;
            (a[1], a[last], b[2], bias[3]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN);
            for epilogue in [Epilogue::Bare, Epilogue::BiasRelu] {
                cases.push(case(sizes, transposed, epilogue, [&a, &b, &bias]));
            }
        }
    }
    cases
}

/// Returns products as layers have them, with tiles of every shape.
pub(crate) fn layers() -> Vec<Operation> {
    let layers = [
        ([64, 784, 128], TRANSPOSED[0], Epilogue::BiasRelu),
        ([16384, 512, 10], TRANSPOSED[0], Epilogue::Bias),
        ([10, 512, 16384], TRANSPOSED[1], Epilogue::Bare),
        ([16384, 512, 32], TRANSPOSED[2], Epilogue::BiasRelu),
        ([32, 16384, 2048], TRANSPOSED[1], Epilogue::Bare),
        ([4096, 1024, 4096], TRANSPOSED[0], Epilogue::BiasRelu),
        ([4096, 1024, 4096], TRANSPOSED[3], Epilogue::Bare),
        // The indices of the result have more than 32 bits.
        ([1 << 16, 512, 1 << 17], TRANSPOSED[0], Epilogue::Bias),
    ];
    let operation = |(sizes, [transpose_a, transpose_b], epilogue): ([usize; 3], [bool; 2], Epilogue)| {
        Operation::product(&Product::new(sizes, transpose_a, transpose_b).unwrap(), epilogue, Multiplier::Own)
    };
    let attention = Product::new([128, 64, 128], false, true).unwrap();
    layers
        .into_iter()
        .map(operation)
        .chain([Operation::batched_product(96, &attention, Multiplier::Own)])
        .collect()
}

/// Returns all cases.
pub(crate) fn cases() -> Vec<Case> {
    [products(), batches(), not_finite()].concat()
}

#[test]
fn products_agree() {
    agree(&cases(), 40);
}

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

#[test]
fn every_mutation_of_products_is_found() {
    let mut numbers = Numbers(13);
    // Two blocks add the parts of three groups of elements.
    let cases =
        [([5, 2300, 14], [true, false], Epilogue::BiasRelu), ([66, 20, 3], [true, false], Epilogue::Bare)];
    let drawn = |(sizes, transposed, epilogue)| drawn(&mut numbers, sizes, transposed, epilogue);
    find_all_in(cases.map(drawn).to_vec(), &OF_PRODUCTS);
}
