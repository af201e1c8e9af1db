//! Runs a program on batches: the instructions in order, all working memory in one arena that is there from the start.

use std::ops::Range;

use kernels::cpu::{self, LabelOutOfRange, MatRef, Threads};
use messages::buffer::Buffer;

use super::compile::{Instruction, Kernel, Matrix, Place, Program};
use crate::gradients::Gradients;
use crate::input::Batch;
use crate::values::Values;

/// A program and its arena.
pub struct Executor {
    program: Program,
    arena: Buffer,
    scalars: Vec<f32>,
}

impl Executor {
    /// With all the memory it will ever need.
    pub fn new(program: Program) -> Self {
        let arena = Buffer::zeroed(program.arena_bytes());
        Self { program, arena, scalars: Vec::new() }
    }

    /// What it runs.
    pub const fn program(&self) -> &Program {
        &self.program
    }

    /// Runs forward, and backward where the program has gradients. Gives the loss, then each metric.
    ///
    /// # Errors
    /// Where a label is none of the classes; the gradients are not to be used then.
    ///
    /// # Panics
    /// Where the batch is not of the program's size.
    pub fn run(
        &mut self,
        batch: &Batch,
        values: &Values,
        mut gradients: Option<&mut Gradients>,
        threads: Threads,
    ) -> Result<&[f32], LabelOutOfRange> {
        assert_eq!(batch.labels.len(), self.program.batch, "the program was compiled for another batch size");
        let arena = self.arena.as_f32_mut();
        if let Some(gradients) = gradients.as_deref_mut() {
            for &variable in &self.program.unused {
                gradients.variable_mut(variable).fill(0.0);
            }
        }
        for instruction in &self.program.instructions {
            let (output, rest) = match &instruction.output {
                Place::Arena(range) => Rest::split(arena, range),
                Place::Gradient(variable) => {
                    let gradients = gradients.as_deref_mut().expect("this program computes gradients");
                    (gradients.variable_mut(*variable), Rest::all(arena))
                }
                other => unreachable!("{other:?} is never written"),
            };
            execute(instruction, output, &Sources { rest, values, batch }, threads)?;
        }
        self.scalars.clear();
        let scalar = |place: &Place| match place {
            Place::Arena(range) => arena[range.start],
            Place::Variable(variable) => values.variable(*variable)[0],
            other => unreachable!("{other:?} is no scalar"),
        };
        self.scalars.extend(self.program.scalars.iter().map(scalar));
        Ok(&self.scalars)
    }
}

/// The arena without the range that is being written.
struct Rest<'a> {
    before: &'a [f32],
    after: &'a [f32],
    after_start: usize,
}

impl<'a> Rest<'a> {
    fn split(arena: &'a mut [f32], output: &Range<usize>) -> (&'a mut [f32], Self) {
        let (before, behind) = arena.split_at_mut(output.start);
        let (output_values, after) = behind.split_at_mut(output.len());
        (output_values, Self { before, after, after_start: output.end })
    }

    fn all(arena: &'a [f32]) -> Self {
        Self { before: arena, after: &[], after_start: arena.len() }
    }

    fn get(&self, range: &Range<usize>) -> &'a [f32] {
        if range.start >= self.after_start {
            &self.after[range.start - self.after_start..range.end - self.after_start]
        } else {
            &self.before[range.clone()]
        }
    }
}

/// Everything that an instruction may read.
struct Sources<'a> {
    rest: Rest<'a>,
    values: &'a Values,
    batch: &'a Batch,
}

impl Sources<'_> {
    fn floats(&self, place: &Place) -> &[f32] {
        match place {
            Place::Arena(range) => self.rest.get(range),
            Place::Variable(variable) => self.values.variable(*variable),
            Place::Features => &self.batch.features,
            Place::Gradient(_) | Place::Labels => unreachable!("{place:?} is no input of floats"),
        }
    }
}

fn execute(
    instruction: &Instruction,
    output: &mut [f32],
    sources: &Sources<'_>,
    threads: Threads,
) -> Result<(), LabelOutOfRange> {
    let input = |position: usize| sources.floats(&instruction.inputs[position]);
    let labels = &sources.batch.labels;
    match instruction.kernel {
        Kernel::Constant(value) => output.fill(value),
        Kernel::Copy => output.copy_from_slice(input(0)),
        Kernel::MatMul { a, b } => cpu::matmul(output, matrix(input(0), a), matrix(input(1), b), threads),
        Kernel::BiasAdd { in_place: false, relu: false } => cpu::bias_add(output, input(0), input(1)),
        Kernel::BiasAdd { in_place: false, relu: true } => cpu::bias_relu(output, input(0), input(1)),
        Kernel::BiasAdd { in_place: true, relu: false } => cpu::bias_add_in_place(output, input(0)),
        Kernel::BiasAdd { in_place: true, relu: true } => cpu::bias_relu_in_place(output, input(0)),
        Kernel::Relu { in_place: false } => cpu::relu(output, input(0)),
        Kernel::Relu { in_place: true } => cpu::relu_in_place(output),
        Kernel::Add { in_place: false } => cpu::add(output, input(0), input(1)),
        Kernel::Add { in_place: true } => cpu::accumulate(output, input(0)),
        Kernel::ReluGrad { in_place: false } => cpu::relu_grad(output, input(0), input(1)),
        Kernel::ReluGrad { in_place: true } => cpu::relu_grad_in_place(output, input(0)),
        Kernel::SumRows => cpu::sum_rows(output, input(0)),
        Kernel::SoftmaxCrossEntropy => output[0] = cpu::softmax_cross_entropy(input(0), labels)?,
        Kernel::SoftmaxCrossEntropyGrad => {
            cpu::softmax_cross_entropy_grad(output, input(0), labels, input(2)[0])?;
        }
        Kernel::Accuracy => output[0] = cpu::count_correct(input(0), labels) as f32 / labels.len() as f32,
    }
    Ok(())
}

fn matrix(data: &[f32], Matrix { rows, cols, transposed }: Matrix) -> MatRef<'_> {
    let matrix = MatRef::new(data, rows, cols);
    if transposed { matrix.transpose() } else { matrix }
}
