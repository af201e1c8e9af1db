//! Dropout has the same bits as on the processor, on every device.

use pushpull_cuda::{Operation, StepNumbers};
use pushpull_kernels::cpu::{self, Key};

use crate::case::{Case, Data, agree};
use crate::mutations::{Mutation, find_all_in};
use crate::numbers::Numbers;

/// Numbers of elements with the index of the first example and the number of elements of an example.
const SIZES: [(usize, u64, usize); 14] = [
    (0, 1, 4),
    (1, 0, 1),
    (1, 3, 1),
    (2, 1, 3),
    (3, 3, 7),
    (4, 0, 4),
    (5, 5, 5),
    (255, 1, 255),
    (256, 2, 1),
    (257, 7, 257),
    (1023, 1, 1023),
    (1030, 3, 103),
    (2100, (1 << 31) + 1, 21),
    (300, 1 << 40, 3),
];

pub(crate) fn dropout(
    numbers: &mut Numbers,
    (elements, first, example): (usize, u64, usize),
    rate: f32,
) -> Case {
    let [random, stream] = [numbers.next(), numbers.next()];
    let mut x = numbers.between(-1.0, 1.0, elements);
    // A NaN that is dropped is 0.
    x.iter_mut().skip(1).step_by(5).for_each(|x| *x = f32::NAN);
    let mut output = vec![f32::NAN; elements];
    cpu::dropout(&mut output, &x, Key { seed: random, stream }, first * example as u64, rate);
    let name = format!("dropout at {rate} of {elements} elements from {first} * {example} on");
    let operation = Operation::dropout(elements, rate, stream, example);
    let case = Case::new(name, operation, vec![Data::F32(x)], vec![Data::F32(output)]);
    Case { step: StepNumbers { random, first, share: 0.5 }, tolerance: 0.0, in_place: true, ..case }
}

/// Changes of the kernels of dropout.
const MUTATIONS: [Mutation; 5] = [
    Mutation { name: "every device draws the same numbers", from: "first / 4 + group", to: "group" },
    Mutation {
        name: "the first element is the first of its four",
        from: "4 * group + word - skipped",
        to: "4 * group + word",
    },
    Mutation { name: "the last elements are left out", from: "(skipped + n + 3) / 4", to: "(n + 3) / 4" },
    Mutation { name: "an index of 32 bits", from: "(unsigned)(number >> 32)", to: "0u" },
    Mutation { name: "a round too few", from: "round < 10", to: "round < 9" },
];

/// Returns all cases.
pub(crate) fn cases() -> Vec<Case> {
    let (mut numbers, mut cases) = (Numbers(70), Vec::new());
    for rate in [0.0, 0.1, 0.5, 0.99] {
        cases.extend(SIZES.iter().map(|&sizes| dropout(&mut numbers, sizes, rate)));
    }
    cases
}

#[test]
fn dropout_has_the_same_bits() {
    agree(&cases(), 70);
}

#[test]
fn every_mutation_of_dropout_is_found() {
    let mut numbers = Numbers(71);
    let sizes = [(6, 23, 1), (300, 1 << 40, 3)];
    find_all_in(sizes.map(|sizes| dropout(&mut numbers, sizes, 0.5)).to_vec(), &MUTATIONS);
}
