//! Operations that make, convert or move single elements agree with those of the processor, on every device.

use pushpull_cuda::{Operation, StepNumbers};
use pushpull_kernels::cpu::{self, AxisPart, Binary, Broadcast, Side, Threads};

use crate::case::{Case, Data, agree};
use crate::numbers::Numbers;

/// Shapes that are broadcast against each other.
const SHAPES: [[&[usize]; 2]; 9] = [
    [&[2, 3], &[2, 3]],
    [&[2, 1, 5], &[3, 1]],
    [&[4, 1], &[1, 300]],
    [&[], &[7]],
    [&[1, 6, 1, 2], &[5, 1, 4, 2]],
    [&[257, 1], &[257, 33]],
    [&[3, 0], &[1]],
    [&[2, 1, 2, 1, 2, 1, 2, 1], &[1, 3, 1, 3, 1, 3, 1, 3]],
    [&[1], &[1]],
];

fn elements(shape: &[usize]) -> usize {
    shape.iter().product()
}

fn case(name: String, operation: Operation, inputs: &[&[f32]], output: Vec<f32>) -> Case {
    let inputs = inputs.iter().map(|input| Data::F32(input.to_vec())).collect();
    Case { tolerance: 0.0, ..Case::new(name, operation, inputs, vec![Data::F32(output)]) }
}

fn broadcasts() -> Vec<Case> {
    let (mut numbers, mut cases) = (Numbers(20), Vec::new());
    for [a, b] in SHAPES {
        let shapes = Broadcast::new(a, b).unwrap();
        let inputs = [a, b].map(|shape| numbers.between(0.5, 2.0, elements(shape)));
        for f in [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div] {
            let mut output = vec![f32::NAN; shapes.len()];
            cpu::binary(&mut output, &inputs[0], &inputs[1], f, &shapes, Threads::One);
            let name = format!("{f:?} of {a:?} and {b:?}");
            cases.push(case(name, Operation::binary(f, &shapes), &[&inputs[0], &inputs[1]], output));
        }
        let mut output = vec![f32::NAN; shapes.len()];
        cpu::expand(&mut output, &inputs[0], &shapes, Side::A);
        let name = format!("expand {a:?} to {b:?}");
        cases.push(case(name, Operation::expand(&shapes), &[&inputs[0]], output));
    }
    cases
}

fn transpositions() -> Vec<Case> {
    let (mut numbers, mut cases) = (Numbers(21), Vec::new());
    for (shape, axes) in [
        (&[3, 5][..], &[1, 0][..]),
        (&[4, 5, 6], &[0, 2, 1]),
        (&[4, 5, 6], &[2, 0, 1]),
        (&[2, 3, 4, 5], &[0, 2, 1, 3]),
        (&[40, 41], &[1, 0]),
        (&[1, 7, 1], &[2, 1, 0]),
        (&[3, 0, 2], &[2, 1, 0]),
        (&[6], &[0]),
    ] {
        let x = numbers.between(-1.0, 1.0, elements(shape));
        let mut output = vec![f32::NAN; x.len()];
        cpu::transpose(&mut output, &x, shape, axes, Threads::One);
        let name = format!("transpose {shape:?} by {axes:?}");
        cases.push(case(name, Operation::transpose(shape, axes), &[&x], output));
    }
    cases
}

fn parts() -> Vec<Case> {
    let (mut numbers, mut cases) = (Numbers(22), Vec::new());
    for (shape, axis, cuts) in [
        (&[5][..], 0, &[0, 2, 5][..]),
        (&[3, 7, 2], 1, &[0, 1, 1, 7]),
        (&[4, 90], 1, &[0, 33, 90]),
        (&[6, 5], 0, &[0, 6]),
        (&[0, 4], 1, &[0, 1, 4]),
    ] {
        let parts: Vec<AxisPart> =
            cuts.windows(2).map(|cut| AxisPart { axis, start: cut[0], len: cut[1] - cut[0] }).collect();
        let whole = numbers.between(-1.0, 1.0, elements(shape));
        let mut pieces = Vec::new();
        for &part in &parts {
            let count = elements(shape).checked_div(shape[axis]).unwrap_or(0) * part.len;
            let mut piece = vec![f32::NAN; count];
            cpu::copy_part(&mut piece, &whole, shape, part);
            let operation = Operation::slice(shape, part);
            cases.push(case(format!("{part:?} of {shape:?}"), operation, &[&whole], piece.clone()));
            let mut pasted = vec![0.0; whole.len()];
            cpu::paste_part(&mut pasted, &piece, shape, part);
            let operation = Operation::paste(shape, part);
            cases.push(case(format!("{part:?} into {shape:?}"), operation, &[&piece], pasted));
            pieces.push(piece);
        }
        let inputs: Vec<&[f32]> = pieces.iter().map(Vec::as_slice).collect();
        let operation = Operation::concat(shape, &parts);
        cases.push(case(format!("{cuts:?} make {shape:?}"), operation, &inputs, whole));
    }
    cases
}

fn constants() -> Vec<Case> {
    let mut cases = vec![];
    for count in [0, 1, 300] {
        let x = Numbers(23).between(-1.0, 1.0, count);
        cases.push(case(format!("copy {count}"), Operation::copy(count), &[&x], x.clone()));
        for number in [-2.5, f32::NAN, f32::NEG_INFINITY] {
            let name = format!("{count} times {number}");
            cases.push(case(name, Operation::fill(number, count), &[], vec![number; count]));
        }
        let integers: Vec<i32> = (0..count as i32).map(|number| 7 - 3 * number).collect();
        let floats = Data::F32(integers.iter().map(|&number| number as f32).collect());
        let name = format!("{count} integers");
        cases.push(Case::new(name, Operation::to_float(count), vec![Data::I32(integers)], vec![floats]));
    }
    let share = case("share".to_owned(), Operation::share(), &[], vec![0.375]);
    cases.push(Case { step: StepNumbers { random: u64::MAX, first: u64::MAX, share: 0.375 }, ..share });
    cases
}

/// Returns all cases.
pub(crate) fn cases() -> Vec<Case> {
    [broadcasts(), transpositions(), parts(), constants()].concat()
}

#[test]
fn elements_agree() {
    agree(&cases(), 20);
}
