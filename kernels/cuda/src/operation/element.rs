//! Operations that make, convert or move single elements: constants, broadcasts, transpositions and parts.

use pushpull_kernels::cpu::{AxisPart, Binary, Broadcast, Side};

use super::axes::{Axis, dense, index_type, offset};
use super::chain::sign;
use super::{Operation, Slot, thread_for_each};
use crate::source::Library;

impl Operation {
    /// () → `elements` times this number.
    pub fn fill(number: f32, elements: usize) -> Self {
        let number = format!("__int_as_float(0x{:08X})", number.to_bits());
        each("fill", "", &number, elements, &[])
    }

    /// () → the device's share of the examples of the batch.
    pub fn share() -> Self {
        each("share", ", const Step* step", "step->share", 1, &[Slot::Step])
    }

    /// x → a copy of it.
    pub fn copy(elements: usize) -> Self {
        each("copy", ", const float* from", "from[at]", elements, &[Slot::Input(0)])
    }

    /// Integers → floats.
    pub fn to_float(elements: usize) -> Self {
        each("to_float", ", const int* from", "(float)from[at]", elements, &[Slot::Input(0)])
    }

    /// a, b → a ∘ b.
    pub fn binary(f: Binary, shapes: &Broadcast) -> Self {
        let [a, b] = [Side::A, Side::B].map(|side| offset("at", repeated(shapes, side)));
        let formula = format!("a[{a}] {} b[{b}]", sign(f));
        let inputs = [Slot::Input(0), Slot::Input(1)];
        each("binary", ", const float* a, const float* b", &formula, shapes.len(), &inputs)
    }

    /// x → x repeated from the broadcast's first shape to its result.
    pub fn expand(shapes: &Broadcast) -> Self {
        moved("expand", repeated(shapes, Side::A), 0, shapes.len())
    }

    /// x of this shape → x with its axes in another order: axis `i` of the result is axis `axes[i]` of x.
    pub fn transpose(shape: &[usize], axes: &[usize]) -> Self {
        let mut from = dense(shape);
        from.reverse();
        moved("transpose", axes.iter().rev().map(|&axis| from[axis]).collect(), 0, shape.iter().product())
    }

    /// x of this shape → a part of it.
    pub fn slice(shape: &[usize], part: AxisPart) -> Self {
        let (axes, first) = part_of(shape, part);
        let elements = axes.iter().map(|axis| axis.size).product();
        moved("slice", axes, first, elements)
    }

    /// The parts… → their concatenation, a tensor of this shape.
    pub fn concat(shape: &[usize], parts: &[AxisPart]) -> Self {
        let paste = |all: Self, (input, &part): (usize, &AxisPart)| all.pasted(shape, part, input);
        parts.iter().enumerate().fold(Self::default(), paste)
    }

    /// x → zeros of this shape, in which x replaces the part.
    pub fn paste(shape: &[usize], part: AxisPart) -> Self {
        Self::fill(0.0, shape.iter().product()).pasted(shape, part, 0)
    }

    /// Adds a kernel that replaces a part of the output with an input.
    fn pasted(self, shape: &[usize], part: AxisPart, input: usize) -> Self {
        let (axes, first) = part_of(shape, part);
        let elements: usize = axes.iter().map(|axis| axis.size).product();
        if elements == 0 {
            return self;
        }
        let index = index_type(shape.iter().product());
        let body = format!(
            "    FOR_EACH(each, {elements}) {{\n        {index} at = ({index})each;\n        \
             to[{first} + {}] = from[at];\n    }}\n",
            offset("at", axes)
        );
        let text = ["float* to, const float* from", &*body];
        let arguments = [Slot::Output(0), Slot::Input(input)];
        self.then_generated(Library::Prelude, "paste", text, thread_for_each(elements), &arguments)
    }
}

/// Returns an operation that writes the value of `formula` to each element `at` of its output.
pub(super) fn each(
    kind: &str,
    parameters: &str,
    formula: &str,
    elements: usize,
    inputs: &[Slot],
) -> Operation {
    if elements == 0 {
        return Operation::nothing();
    }
    let index = index_type(elements);
    let body = format!(
        "    FOR_EACH(each, {elements}) {{\n        {index} at = ({index})each;\n        \
         to[at] = {formula};\n    }}\n"
    );
    let arguments = [&[Slot::Output(0)], inputs].concat();
    let text = [&*format!("float* to{parameters}"), &*body];
    Operation::default().then_generated(Library::Prelude, kind, text, thread_for_each(elements), &arguments)
}

/// Returns an operation whose output has these axes within its input, from the element `first` on.
fn moved(kind: &str, axes: Vec<Axis>, first: usize, elements: usize) -> Operation {
    let formula = format!("from[{first} + {}]", offset("at", axes));
    each(kind, ", const float* from", &formula, elements, &[Slot::Input(0)])
}

/// Returns the axes of a broadcast's result, the last one first, within an operand.
pub(super) fn repeated(shapes: &Broadcast, side: Side) -> Vec<Axis> {
    let mut stride = 1;
    let axis = |(size, has): (usize, [bool; 2])| {
        let own = if has[side as usize] { stride } else { 0 };
        stride *= if has[side as usize] { size } else { 1 };
        Axis { size, stride: own }
    };
    shapes.axes().map(axis).collect()
}

/// Returns the axes of a part within the whole, the last one first, and where the part begins.
fn part_of(shape: &[usize], AxisPart { axis, start, len }: AxisPart) -> (Vec<Axis>, usize) {
    let mut axes = dense(shape);
    let own = shape.len() - 1 - axis;
    axes[own].size = len;
    let first = start * axes[own].stride;
    (axes, first)
}
