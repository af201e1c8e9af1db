//! Generates kernels for chains of element-wise operations, one kernel for each chain, so that a chain is one
//! pass over memory.

use std::fmt::Write;

use pushpull_kernels::cpu::{Binary, Extent, Side, Step, Unary};

use crate::driver::{Argument, Driver, DriverError, Grid, Launch, Place};
use crate::source::{FUNCTIONS, Source};

/// A chain of element-wise operations with a kernel of its own. It computes what
/// [`chain`](pushpull_kernels::cpu::chain) computes.
#[derive(Clone, Debug, PartialEq)]
pub struct Chain {
    kernel: String,
    steps: Vec<Step>,
    /// The number of operands.
    operands: usize,
}

impl Chain {
    /// Returns a chain of these steps. Its kernel is called `chain_` and the number.
    pub fn new(number: usize, steps: Vec<Step>) -> Self {
        let index = |step: &Step| match step {
            Step::Unary(_) => None,
            Step::UnaryGrad(_, operand) | Step::Binary(_, operand, _) => Some(operand.index + 1),
        };
        let operands = steps.iter().filter_map(index).max().unwrap_or(0);
        Self { kernel: format!("chain_{number}"), steps, operands }
    }

    /// Returns the number of operands.
    pub const fn operands(&self) -> usize {
        self.operands
    }

    /// Returns the source of the kernels of some chains.
    pub fn source(name: impl Into<String>, chains: &[Self]) -> Source {
        let mut text = FUNCTIONS.to_owned();
        chains.iter().for_each(|chain| chain.write(&mut text).expect("text can be written to text"));
        Source::new(name, &text)
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        write!(text, "\nextern \"C\" __global__ void {}(float* to, const float* first", self.kernel)?;
        (0..self.operands).try_for_each(|at| write!(text, ", const float* operand{at}, Count length{at}"))?;
        writeln!(text, ", Count n) {{\n    FOR_EACH(at, n) {{\n        float x = first[at];")?;
        for step in &self.steps {
            writeln!(text, "        x = {};", expression(step))?;
        }
        writeln!(text, "        to[at] = x;\n    }}\n}}")
    }

    /// Computes the chain for `elements` elements. `first` and `to` may be the same place. Each operand comes
    /// with the number of its elements.
    ///
    /// # Errors
    /// Returns the errors of [`Driver::launch`]. The chain's source must have been loaded.
    ///
    /// # Panics
    /// If the number of operands differs from that of the chain.
    pub fn run(
        &self,
        driver: &mut dyn Driver,
        to: Place,
        first: Place,
        operands: &[(Place, u64)],
        elements: u64,
    ) -> Result<(), DriverError> {
        assert_eq!(operands.len(), self.operands, "the operands of {}", self.kernel);
        if elements == 0 {
            return Ok(());
        }
        let mut arguments = vec![Argument::Place(to), Argument::Place(first)];
        arguments.extend(operands.iter().flat_map(|&(place, n)| [Argument::Place(place), Argument::U64(n)]));
        arguments.push(Argument::U64(elements));
        driver.launch(Launch { kernel: &self.kernel, grid: Grid::for_each(elements), arguments: &arguments })
    }
}

/// Returns the expression of one step. It reads the element `x`.
fn expression(step: &Step) -> String {
    let operand = |operand: &pushpull_kernels::cpu::Operand| {
        let index = operand.index;
        match operand.extent {
            Extent::Whole => format!("operand{index}[at]"),
            Extent::Scalar => format!("operand{index}[0]"),
            Extent::Row => format!("operand{index}[at % length{index}]"),
        }
    };
    match step {
        Step::Unary(Unary::LeakyRelu(slope)) => format!("leaky_relu(x, {slope:?}f)"),
        Step::Unary(f) => format!("{}(x)", name(*f)),
        Step::UnaryGrad(Unary::LeakyRelu(slope), saved) => {
            format!("leaky_relu_grad({}, x, {slope:?}f)", operand(saved))
        }
        Step::UnaryGrad(f, saved) => format!("{}_grad({}, x)", name(*f), operand(saved)),
        Step::Binary(f, other, side) => {
            let sign = match f {
                Binary::Add => '+',
                Binary::Sub => '-',
                Binary::Mul => '*',
                Binary::Div => '/',
            };
            match side {
                Side::A => format!("{} {sign} x", operand(other)),
                Side::B => format!("x {sign} {}", operand(other)),
            }
        }
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
