//! Attention as one kernel, and its gradient, agree with a reference in `f64`, on every device. The reference
//! agrees with the processor's separate operations.

use pushpull_cuda::{Attention, Multiplier, Operation, Precision};
use pushpull_kernels::cpu::{self, Product, Threads};

use crate::case::{Case, Data, agree};
use crate::mutations::{Mutation, find_all_in};
use crate::numbers::Numbers;

/// The sizes of attention: the number of times, the queries, the keys, and the size of each of them.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    number: usize,
    rows: [usize; 2],
    size: usize,
    causal: bool,
}

/// The inputs of a forward and a backward pass: q, k, v, and the gradient of the mean.
type Inputs = [Vec<f32>; 4];

/// What attention computes, in `f64`.
struct Reference {
    mean: Vec<f64>,
    sizes: Vec<f64>,
    /// The gradients of v, k and q.
    gradients: [Vec<f64>; 3],
}

const OWN: Multiplier = Multiplier::Own;
const TENSOR: Multiplier = Multiplier::Library(Precision::Tf32);

const fn sizes(number: usize, rows: [usize; 2], size: usize, causal: bool) -> Sizes {
    Sizes { number, rows, size, causal }
}

/// Sizes around those of blocks, with and without tails.
const SIZES: [Sizes; 16] = [
    sizes(0, [3, 3], 4, false),
    sizes(1, [1, 1], 1, false),
    sizes(2, [1, 1], 16, true),
    sizes(3, [5, 7], 3, false),
    sizes(2, [9, 9], 8, true),
    sizes(1, [32, 32], 16, false),
    sizes(1, [64, 64], 32, true),
    sizes(2, [65, 33], 20, false),
    sizes(1, [31, 70], 30, false),
    sizes(2, [70, 70], 17, true),
    sizes(1, [97, 97], 64, true),
    sizes(1, [40, 65], 64, false),
    sizes(1, [35, 35], 128, true),
    sizes(2, [17, 34], 128, false),
    sizes(1, [20, 20], 80, true),
    sizes(1, [18, 18], 97, false),
];

impl Sizes {
    fn attention(&self, multiplier: Multiplier) -> Attention {
        let Self { number, rows, size, causal } = *self;
        Attention::new(number, rows, size, causal, multiplier).expect("there are kernels")
    }

    /// Returns random inputs. A query of head size d is divided by √d, so that the scores are as those of
    /// models.
    fn drawn(&self, numbers: &mut Numbers) -> Inputs {
        let Self { number, rows: [queries, keys], size, .. } = *self;
        let mut inputs =
            [queries, keys, keys, queries].map(|rows| numbers.between(-2.0, 2.0, number * rows * size));
        inputs[0].iter_mut().for_each(|x| *x /= (size as f32).sqrt());
        // So all precisions have the same products.
        inputs.iter_mut().flatten().for_each(|x| *x = f32::from_bits(x.to_bits() & !0x1FFF));
        inputs
    }

    /// Returns the number of keys that a query sees.
    const fn seen(&self, query: usize) -> usize {
        if self.causal { query + 1 } else { self.rows[1] }
    }

    /// Returns what attention computes. Only the keys that a query sees matter.
    fn reference(&self, inputs: &Inputs) -> Reference {
        let Self { number, rows: [queries, keys], size, .. } = *self;
        let [q, k, v, dmean] = inputs.each_ref().map(|all| {
            let wide: Vec<f64> = all.iter().map(|&x| f64::from(x)).collect();
            wide
        });
        let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
        let mut mean = vec![0.0; number * queries * size];
        let mut logarithms = vec![0.0; number * queries];
        let mut gradients = [keys, keys, queries].map(|rows| vec![0.0; number * rows * size]);
        for (at, logarithm) in logarithms.iter_mut().enumerate() {
            let (own, first_key) = (at * size..(at + 1) * size, at / queries * keys);
            let of_key = |key: usize| (first_key + key) * size..(first_key + key + 1) * size;
            let seen = 0..self.seen(at % queries);
            let scores: Vec<f64> = seen.clone().map(|key| dot(&q[own.clone()], &k[of_key(key)])).collect();
            let larger = |a: f64, &b: &f64| if b > a || b.is_nan() { b } else { a };
            let largest = scores.iter().fold(f64::NEG_INFINITY, larger);
            let shares: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
            let total: f64 = shares.iter().sum();
            *logarithm = if largest == f64::NEG_INFINITY { largest } else { largest + total.ln() };
            for key in seen.clone() {
                for (to, v) in mean[own.clone()].iter_mut().zip(&v[of_key(key)]) {
                    *to += shares[key] / total * v;
                }
            }
            let product = dot(&mean[own.clone()], &dmean[own.clone()]);
            for key in seen {
                let (share, range) = (shares[key] / total, of_key(key));
                let slope = share * (dot(&dmean[own.clone()], &v[range.clone()]) - product);
                let [dv, dk, dq] = &mut gradients;
                for column in 0..size {
                    dv[range.start + column] += share * dmean[own.start + column];
                    dk[range.start + column] += slope * q[own.start + column];
                    dq[own.start + column] += slope * k[range.start + column];
                }
            }
        }
        Reference { mean, sizes: logarithms, gradients }
    }

    /// Returns the mean that the processor's separate operations compute.
    fn of_processor(&self, [q, k, v, _]: &Inputs) -> Vec<f32> {
        let Self { number, rows: [queries, keys], size, causal } = *self;
        let multiply = |a: &[f32], b: &[f32], sizes @ [m, _, n]: [usize; 3], transpose_b: bool| {
            let product = Product::new(sizes, false, transpose_b).unwrap();
            let mut to = vec![f32::NAN; number * m * n];
            let mut scratch = vec![f32::NAN; cpu::batched_matmul_scratch(number, &product, Threads::One)];
            cpu::batched_matmul(&mut to, a, b, number, &product, &mut scratch, Threads::One);
            to
        };
        let scores = multiply(q, k, [queries, size, keys], true);
        let mut shares = vec![f32::NAN; scores.len()];
        if causal {
            cpu::causal_softmax(&mut shares, &scores, keys, Threads::One);
        } else {
            cpu::softmax(&mut shares, &scores, keys, Threads::One);
        }
        multiply(&shares, v, [queries, keys, size], false)
    }

    /// Returns the cases of the forward and of the backward pass.
    fn cases(&self, inputs: &Inputs, multiplier: Multiplier) -> [Case; 2] {
        let Reference { mean, sizes, gradients } = self.reference(inputs);
        let narrow = |wide: &[f64]| wide.iter().map(|&x| x as f32).collect::<Vec<f32>>();
        let data = |numbers: &[f32]| Data::F32(numbers.to_vec());
        let [q, k, v, dmean] = inputs;
        let rows = self.rows[1].max(self.rows[0]);
        let tolerance = match multiplier {
            OWN => 2e-5 * (rows as f64).sqrt(),
            // The inputs have 10 bits behind the point, and the weights are rounded to as many.
            _ => 6e-3,
        };
        let case = |name: &str, operation, inputs, outputs: Vec<Vec<f64>>| {
            let narrowed = outputs.iter().map(|output| Data::F32(narrow(output))).collect();
            let case = Case::new(format!("{name} of {self:?}"), operation, inputs, narrowed);
            Case { reference: Some(outputs), tolerance, ..case }
        };
        let of_forward = vec![data(q), data(k), data(v)];
        let of_backward =
            vec![data(q), data(k), data(v), data(&narrow(&mean)), data(&narrow(&sizes)), data(dmean)];
        let attention = self.attention(multiplier);
        [
            case("attention", Operation::attention(&attention), of_forward, vec![mean, sizes]),
            case("its gradient", Operation::attention_grad(&attention), of_backward, gradients.to_vec()),
        ]
    }
}

/// Returns all cases.
pub(crate) fn cases() -> Vec<Case> {
    let mut numbers = Numbers(60);
    let own = SIZES.iter().flat_map(|sizes| sizes.cases(&sizes.drawn(&mut numbers), OWN));
    let mut cases: Vec<Case> = own.collect();
    // To emulate tensor cores takes long.
    let small = SIZES.iter().filter(|sizes| sizes.size <= 64 && sizes.rows[0] < 90);
    cases.extend(small.flat_map(|sizes| sizes.cases(&sizes.drawn(&mut numbers), TENSOR)));
    cases
}

/// Returns attention of each size of queries that has other kernels, for the budgets.
pub(crate) fn operations() -> Vec<Operation> {
    let of_size = |size: usize| {
        let of = |causal, multiplier| Attention::new(256, [256, 256], size, causal, multiplier);
        let all = [of(false, OWN), of(true, OWN), of(false, TENSOR), of(true, TENSOR)];
        all.into_iter()
            .flatten()
            .flat_map(|own| [Operation::attention(&own), Operation::attention_grad(&own)])
    };
    [16, 32, 50, 64, 80, 96, 128].into_iter().flat_map(of_size).collect()
}

#[test]
fn attention_agrees_with_its_reference() {
    agree(&cases(), 60);
}

#[test]
fn the_reference_of_attention_is_that_of_separate_operations() {
    let mut numbers = Numbers(61);
    for sizes in SIZES {
        let inputs = sizes.drawn(&mut numbers);
        let (wide, own) = (sizes.reference(&inputs).mean, sizes.of_processor(&inputs));
        crate::numbers::assert_close(&format!("{sizes:?}"), &own, &wide, 1e-4);
    }
}

#[test]
fn large_scores_do_not_overflow() {
    let sizes = sizes(1, [40, 40], 16, true);
    let mut inputs = sizes.drawn(&mut Numbers(62));
    // A later score is larger than all before, or smaller.
    inputs[0].iter_mut().enumerate().for_each(|(at, x)| *x *= [1.0, 40.0, -40.0][at / 16 % 3]);
    inputs[1].iter_mut().enumerate().for_each(|(at, x)| *x *= 1.0 + (at / 16) as f32 / 8.0);
    let [forward, backward] = sizes.cases(&inputs, OWN);
    // The exponential of a large number that is rounded has a larger error.
    agree(&[Case { tolerance: 1e-3, ..forward }, Case { tolerance: 5e-2, ..backward }], 62);
}

#[test]
fn what_is_not_finite_spoils_no_query_that_does_not_see_it() {
    let mut cases = Vec::new();
    for sizes in [sizes(2, [45, 45], 16, true), sizes(2, [20, 45], 16, false)] {
        for (input, number) in
            [(0, f32::NAN), (1, f32::NAN), (2, f32::NAN), (2, f32::INFINITY), (3, f32::NAN)]
        {
            let mut inputs = sizes.drawn(&mut Numbers(63));
            // In the first of two, row 15.
            inputs[input][15 * 16 + 3] = number;
            cases.extend([OWN, TENSOR].into_iter().flat_map(|multiplier| sizes.cases(&inputs, multiplier)));
        }
    }
    let is_nan = |case: &Case| {
        let outputs = case.reference.as_ref().unwrap();
        outputs[0].iter().filter(|number| !number.is_finite()).count()
    };
    // 30 of 45 queries see key 15. A NaN of a key spoils their whole means, and that of a value one column.
    assert_eq!(cases[..12].iter().step_by(4).map(is_nan).collect::<Vec<_>>(), [16, 30 * 16, 30]);
    agree(&cases, 63);
}

#[test]
fn queries_that_see_only_infinite_distances_have_no_mean() {
    let sizes = sizes(3, [2, 40], 1, false);
    let mut inputs = sizes.drawn(&mut Numbers(64));
    inputs[0].fill(1.0);
    // All scores, the first ones, and the last ones.
    for (keys, own) in inputs[1].chunks_exact_mut(40).zip([0..40, 0..35, 3..40]) {
        keys[own].fill(f32::NEG_INFINITY);
    }
    let forward = [OWN, TENSOR].map(|multiplier| sizes.cases(&inputs, multiplier)[0].clone());
    agree(&forward, 64);
}

#[test]
fn sizes_without_kernels_are_refused() {
    let refused = |number, rows, size, causal| Attention::new(number, rows, size, causal, OWN).is_none();
    assert!(refused(1, [4, 4], 0, false), "no columns");
    assert!(refused(1, [4, 4], 129, false), "too many columns");
    assert!(refused(1, [4, 0], 8, false), "no keys");
    assert!(refused(1, [0, 4], 8, false), "no queries");
    assert!(refused(1, [4, 5], 8, true), "causal, but not square");
    assert!(!refused(1, [4, 5], 128, false));
    assert!(Attention::new(1, [4, 4], 65, false, TENSOR).is_none(), "too many columns for tensor cores");
}

/// Changes of the kernels of attention.
const OF_ATTENTION: [Mutation; 14] = [
    Mutation {
        name: "earlier sums without the largest score",
        from: "sums[deep][column] *= less;",
        to: "sums[deep][column] *= 1.0f;",
    },
    Mutation { name: "earlier totals without the largest score", from: "totals[deep] *= less;", to: "" },
    Mutation {
        name: "a mask that is off by one",
        from: "key < KEYS && (!CAUSAL || key <= query);",
        to: "key < KEYS && (!CAUSAL || key < query + 2);",
    },
    Mutation {
        name: "blocks of keys that count as seen",
        from: "(!CAUSAL || key + keys - 1 <= query);",
        to: "(!CAUSAL || key <= query);",
    },
    Mutation { name: "a tail that counts as seen", from: "key + keys <= KEYS", to: "key + keys <= KEYS + 1" },
    Mutation {
        name: "too few keys",
        from: "first + R::OWN < S::KEYS ? first + R::OWN : S::KEYS;",
        to: "first + R::OWN < S::KEYS ? first + R::OWN - R::OTHERS : S::KEYS;",
    },
    Mutation {
        name: "no barrier between blocks of keys",
        from: "            __syncthreads();\n            if (at == 0)",
        to: "            if (at == 0)",
    },
    Mutation {
        name: "no barrier after the weights",
        from: "            __syncwarp();\n            if (S::CAUSAL && !all)",
        to: "            if (S::CAUSAL && !all)",
    },
    Mutation {
        name: "masked values that are added",
        from: "if (!sees(down() + deep * DOWN, first + at)) continue;",
        to: "",
    },
    Mutation {
        name: "queries that are left out of the gradients of keys",
        from: "first / R::OTHERS * R::OTHERS : 0;",
        to: "(first / R::OTHERS + 1) * R::OTHERS : 0;",
    },
    Mutation {
        name: "slopes without their mean",
        from: "share * (slopes[deep][wide] - dots[row]);",
        to: "share * slopes[deep][wide];",
    },
    Mutation {
        name: "no barrier between blocks of the gradients",
        from: "            __syncthreads();\n            if (at == begin)",
        to: "            if (at == begin)",
    },
    Mutation {
        name: "a row beyond the last one is written",
        from: "if (row >= count) continue;",
        to: "if (row > count) continue;",
    },
    Mutation {
        name: "a product of half of the columns",
        from: "for (Count at = threadIdx.x % (lanes); at < (n); at += (lanes))",
        to: "for (Count at = threadIdx.x % (lanes); at < (n); at += 2 * (lanes))",
    },
];

/// Returns the cases in which mutations are found.
fn telling(multiplier: Multiplier) -> Vec<Case> {
    let mut numbers = Numbers(65);
    let (causal, other) = (sizes(1, [70, 70], 20, true), sizes(1, [64, 63], 17, false));
    let mut cases: Vec<Case> = [causal, other]
        .iter()
        .flat_map(|sizes| sizes.cases(&sizes.drawn(&mut numbers), multiplier))
        .collect();
    let mut inputs = causal.drawn(&mut numbers);
    inputs[2][69 * 20] = f32::NAN;
    cases.push(causal.cases(&inputs, multiplier)[0].clone());
    cases
}

/// Changes of the kernels of attention with tensor cores.
const OF_TENSOR_CORES: [Mutation; 13] = [
    Mutation {
        name: "earlier sums without the largest score",
        from: "sums[across][at] *= less;",
        to: "sums[across][at] *= 1.0f;",
    },
    Mutation { name: "earlier totals without the largest score", from: "total *= less;", to: "" },
    Mutation {
        name: "scores that are not masked",
        from: "if (!all && !sees(own, other * 2 + half)) scores[other] = MINUS_INFINITY;",
        to: "",
    },
    Mutation {
        name: "the other half of the scores",
        from: "scores[other] = tiles.weights[0][own][other * 2 + half];",
        to: "scores[other] = tiles.weights[0][own][other * 2 + 1 - half];",
    },
    Mutation {
        name: "no barrier after the scores",
        from: "            __syncwarp();\n            const bool all",
        to: "            const bool all",
    },
    Mutation {
        name: "no barrier after the weights",
        from: "= less;\n            __syncwarp();",
        to: "= less;",
    },
    Mutation {
        name: "no barrier before the own rows are copied",
        from: "    __syncthreads();\n    copy<typename T::Shape>(tiles.others[0],",
        to: "    copy<typename T::Shape>(tiles.others[0],",
    },
    Mutation {
        name: "no barrier before the results take the place of rows",
        from: "    __syncthreads();\n    float(*own)[S::WIDTH + 4] = tiles.own();",
        to: "    float(*own)[S::WIDTH + 4] = tiles.own();",
    },
    Mutation {
        name: "masked values that are added",
        from: "if (S::CAUSAL && !all && tiles.spoiled == at) {",
        to: "if (false) {",
    },
    Mutation {
        name: "own rows of another warp",
        from: "return threadIdx.x / 32 * WARP_ROWS;",
        to: "return (threadIdx.x / 32 ^ 1) * WARP_ROWS;",
    },
    Mutation {
        name: "slopes without their mean",
        from: "(OF_KEYS ? tiles.of_others[1][other] : dot)",
        to: "(OF_KEYS ? tiles.of_others[1][other] : 0.0f)",
    },
    Mutation {
        name: "elements that change places",
        from: "for (unsigned at = 0; at < 8; at++) places[at] = unsigned(numbers[at]);",
        to: "for (unsigned at = 0; at < 8; at++) places[at] = unsigned(numbers[7 - at]);",
    },
    Mutation {
        name: "numbers with too few bits",
        from: "(bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFFu",
        to: "bits & ~0x7FFFFu",
    },
];

#[test]
fn every_mutation_of_tensor_cores_is_found() {
    find_all_in(telling(TENSOR), &OF_TENSOR_CORES);
}

#[test]
fn every_mutation_of_attention_is_found() {
    find_all_in(telling(OWN), &OF_ATTENTION);
}
