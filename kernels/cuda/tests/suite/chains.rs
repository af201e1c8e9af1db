//! Chains of element-wise operations agree with their reference, on every device.

use pushpull_cuda::Operation;
use pushpull_kernels::cpu::{self, Binary, Extent, Operand, Side, Step, Threads, Unary};

use crate::case::{Case, Data, agree};
use crate::mutations::{Mutation, find_all_in};
use crate::numbers::Numbers;
use crate::reference;

/// The number of chains that are drawn.
const CHAINS: usize = 60;
/// The functions that every number has.
const EVERYWHERE: [Unary; 8] = [
    Unary::Neg,
    Unary::Square,
    Unary::Abs,
    Unary::Sigmoid,
    Unary::Tanh,
    Unary::Relu,
    Unary::LeakyRelu(0.2),
    Unary::Gelu,
];
/// The functions that only positive numbers have.
const OF_POSITIVE: [Unary; 4] = [Unary::Sqrt, Unary::Rsqrt, Unary::Log, Unary::Exp];

/// A chain of element-wise operations, and what it is applied to.
pub(crate) struct ChainCase {
    pub steps: Vec<Step>,
    pub first: Vec<f32>,
    pub operands: Vec<Vec<f32>>,
}

impl ChainCase {
    /// Returns the case of the suite.
    pub(crate) fn case(&self, tolerance: f64) -> Case {
        let Self { steps, first, operands } = self;
        let mut output = vec![f32::NAN; first.len()];
        let slices: Vec<&[f32]> = operands.iter().map(Vec::as_slice).collect();
        cpu::chain(&mut output, Some(first), steps, &slices, Threads::One);
        let lengths: Vec<usize> = operands.iter().map(Vec::len).collect();
        let inputs = std::iter::once(first).chain(operands).cloned().map(Data::F32).collect();
        let operation = Operation::chain(steps, &lengths, first.len());
        let case = Case::new(format!("{steps:?}"), operation, inputs, vec![Data::F32(output)]);
        Case { reference: Some(vec![reference::chain(self)]), in_place: true, tolerance, ..case }
    }
}

/// Draws a chain. The operands are a tensor, a number and a row of `n` numbers, all of them positive, and a
/// tensor of numbers with any sign.
pub(crate) fn drawn(numbers: &mut Numbers) -> ChainCase {
    let (rows, n) = (numbers.below(9), 1 + numbers.below(70));
    let mut operands = [rows * n, 1, n].map(|count| numbers.between(0.5, 2.0, count)).to_vec();
    let mut signed = numbers.between(-2.0, 2.0, rows * n);
    signed.iter_mut().step_by(7).for_each(|number| *number = 0.0);
    operands.push(signed);
    let signed = Operand { index: 3, extent: Extent::Whole };
    let operand = |numbers: &mut Numbers| match numbers.below(3) {
        0 => Operand { index: 0, extent: Extent::Whole },
        1 => Operand { index: 1, extent: Extent::Scalar },
        _ => Operand { index: 2, extent: Extent::Row },
    };
    let mut steps = vec![];
    // At most one function is of positive numbers, and it comes first: all numbers are still positive then.
    if numbers.below(2) == 0 {
        steps.push(Step::Unary(OF_POSITIVE[numbers.below(4)]));
    }
    for _ in 0..1 + numbers.below(4) {
        steps.push(match numbers.below(4) {
            0 => Step::Unary(EVERYWHERE[numbers.below(8)]),
            1 => Step::UnaryGrad(EVERYWHERE[numbers.below(8)], signed),
            2 => Step::UnaryGrad(OF_POSITIVE[numbers.below(4)], operand(numbers)),
            _ => {
                let f = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div][numbers.below(4)];
                // A number that is close to 0 must not become a divisor.
                let side = if numbers.below(2) == 0 && f != Binary::Div { Side::A } else { Side::B };
                Step::Binary(f, operand(numbers), side)
            }
        });
    }
    ChainCase { steps, first: numbers.between(0.5, 2.0, rows * n), operands }
}

/// Returns cases of drawn chains. Squares of squares make small differences large.
pub(crate) fn cases(seed: u64, count: usize) -> Vec<Case> {
    let mut numbers = Numbers(seed);
    (0..count).map(|_| drawn(&mut numbers).case(1e-4)).collect()
}

#[test]
fn chains_agree_with_their_reference() {
    agree(&cases(5, CHAINS), 5);
}

#[test]
fn functions_agree_on_numbers_that_are_not_finite() {
    let first = vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 100.0, -100.0];
    let one =
        |f| ChainCase { steps: vec![Step::Unary(f)], first: first.clone(), operands: vec![] }.case(1e-5);
    agree(&EVERYWHERE.into_iter().chain(OF_POSITIVE).map(one).collect::<Vec<_>>(), 6);
}

/// Changes of the kernels of chains.
const OF_CHAINS: [Mutation; 5] = [
    Mutation { name: "a slope that is lost", from: "dy : slope * dy", to: "dy : dy" },
    Mutation { name: "a gradient where there is none", from: "y > 0.0f ? dy : 0.0f", to: "dy" },
    Mutation { name: "a magnitude without its sign", from: "x < 0.0f ? -dy : dy", to: "dy" },
    Mutation { name: "a sigmoid of the magnitude", from: "(x < 0.0f ? small : 1.0f)", to: "1.0f" },
    Mutation { name: "a square that is not doubled", from: "2.0f * x * dy", to: "x * dy" },
];

#[test]
fn every_mutation_of_chains_is_found() {
    find_all_in(cases(11, 40), &OF_CHAINS);
}
