//! Chains of element-wise operations agree with their reference, on every device.

use pushpull_kernels::cpu::{Binary, Extent, Operand, Side, Step, Unary};

use crate::numbers::{Numbers, assert_close};
use crate::reference;
use crate::runner::{ChainCase, runners};

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

#[test]
fn chains_agree_with_their_reference() {
    for (name, mut runner) in runners(5) {
        let mut numbers = Numbers(5);
        let cases: Vec<ChainCase> = (0..CHAINS).map(|_| drawn(&mut numbers)).collect();
        for (case, got) in cases.iter().zip(runner.chains(&cases).unwrap()) {
            // Squares of squares make small differences large.
            let expected = reference::chain(case);
            assert_close(&format!("{name}, {:?}", case.steps), &got, &expected, 1e-4);
        }
    }
}

#[test]
fn functions_agree_on_numbers_that_are_not_finite() {
    let first = vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 100.0, -100.0];
    let cases: Vec<ChainCase> = EVERYWHERE
        .into_iter()
        .chain(OF_POSITIVE)
        .map(|f| ChainCase { steps: vec![Step::Unary(f)], first: first.clone(), operands: vec![] })
        .collect();
    for (name, mut runner) in runners(6) {
        for (case, got) in cases.iter().zip(runner.chains(&cases).unwrap()) {
            assert_close(&format!("{name}, {:?}", case.steps), &got, &reference::chain(case), 1e-5);
        }
    }
}
