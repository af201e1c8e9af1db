//! Chains of element-wise operations, each with a kernel of its own, so that a chain is one pass over memory.

use std::fmt::Write;

use pushpull_kernels::cpu::{Binary, Extent, Operand, Side, Step, Unary};

use super::axes::index_type;
use super::{Operation, Slot, thread_for_each};
use crate::source::Library;

impl Operation {
    /// The first value, the operands… → the result of applying the steps to the first value, which may be
    /// replaced. It computes what [`chain`](pushpull_kernels::cpu::chain) computes. `lengths` has the number
    /// of elements of each operand, and `elements` is that of the first value.
    pub fn chain(steps: &[Step], lengths: &[usize], elements: usize) -> Self {
        let mut parameters = "float* to, const float* first".to_owned();
        let mut body = format!("    FOR_EACH(each, {elements}) {{\n");
        let index = index_type(elements);
        writeln!(body, "        {index} at = ({index})each;\n        float x = first[at];").expect("text");
        let mut arguments = vec![Slot::Output(0), Slot::Input(0)];
        for operand in 0..lengths.len() {
            write!(parameters, ", const float* operand{operand}").expect("text");
            arguments.push(Slot::Input(1 + operand));
        }
        for step in steps {
            writeln!(body, "        x = {};", expression(step, lengths)).expect("text");
        }
        body.push_str("        to[at] = x;\n    }\n");
        if elements == 0 {
            return Self::nothing();
        }
        let grid = thread_for_each(elements);
        Self::default().then_generated(Library::Functions, "chain", [&parameters, &body], grid, &arguments)
    }
}

/// Returns the expression of one step. It reads the element `x`.
fn expression(step: &Step, lengths: &[usize]) -> String {
    let operand = |Operand { index, extent }: &Operand| match extent {
        Extent::Whole => format!("operand{index}[at]"),
        Extent::Scalar => format!("operand{index}[0]"),
        Extent::Row => format!("operand{index}[at % {}]", lengths[*index]),
    };
    match step {
        Step::Unary(f) => function(*f, &["x"]),
        Step::UnaryGrad(f, saved) => gradient(*f, &operand(saved), "x"),
        Step::Binary(f, other, Side::A) => format!("{} {} x", operand(other), sign(*f)),
        Step::Binary(f, other, Side::B) => format!("x {} {}", sign(*f), operand(other)),
    }
}

/// Returns the expression of a function of a number.
fn function(f: Unary, arguments: &[&str]) -> String {
    let slope = match f {
        Unary::LeakyRelu(slope) => format!(", {slope:?}f"),
        _ => String::new(),
    };
    format!("{}({}{slope})", name(f), arguments.join(", "))
}

/// Returns the expression of the gradient of a function.
fn gradient(f: Unary, saved: &str, dy: &str) -> String {
    let call = function(f, &[saved, dy]);
    let (name, arguments) = call.split_once('(').expect("a call");
    format!("{name}_grad({arguments}")
}

/// Returns the operator of a function of two numbers.
pub(super) const fn sign(f: Binary) -> char {
    match f {
        Binary::Add => '+',
        Binary::Sub => '-',
        Binary::Mul => '*',
        Binary::Div => '/',
    }
}

/// Returns the name of a device function.
const fn name(f: Unary) -> &'static str {
    match f {
        Unary::Neg => "neg",
        Unary::Square => "square",
        Unary::Sqrt => "root",
        Unary::Rsqrt => "reciprocal_root",
        Unary::Abs => "magnitude",
        Unary::Log => "logarithm",
        Unary::Exp => "exponential",
        Unary::Sigmoid => "sigmoid",
        Unary::Tanh => "hyperbolic_tangent",
        Unary::Relu => "relu",
        Unary::LeakyRelu(_) => "leaky_relu",
        Unary::Gelu => "gelu",
    }
}
