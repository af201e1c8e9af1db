//! Runs a program on batches: the instructions in order, all working memory in one arena that is there from the start.

use std::ops::Range;

use kernels::cpu::{self, Epilogue, LabelOutOfRange, MatRef, Threads};
use messages::buffer::Buffer;

use super::compile::{Bias, Instruction, Kernel, Matrix, Place, Program};
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
            let (saved, scratch) = (&instruction.saved, &instruction.scratch);
            let (output, memory) = match &instruction.output {
                Place::Arena(range) => {
                    let ([output, saved, scratch], rest) = carve(arena, [range, saved, scratch]);
                    (output, Memory { saved, scratch, rest })
                }
                Place::Gradient(variable) => {
                    let gradients = gradients.as_deref_mut().expect("this program computes gradients");
                    let ([_, saved, scratch], rest) = carve(arena, [&(0..0), saved, scratch]);
                    (gradients.variable_mut(*variable), Memory { saved, scratch, rest })
                }
                other => unreachable!("{other:?} is never written"),
            };
            let Memory { saved, scratch, rest } = memory;
            let sources = Sources { rest, values, batch };
            execute(instruction, Outputs { output, saved, scratch }, &sources, threads)?;
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

/// Cuts out of the arena what an instruction writes, and leaves the rest to be read. The plan keeps all of these apart;
/// where it did not, this would panic rather than mix them up.
fn carve<'a, const N: usize>(
    arena: &'a mut [f32],
    wanted: [&Range<usize>; N],
) -> ([&'a mut [f32]; N], Rest<'a>) {
    let mut order: [usize; N] = std::array::from_fn(|position| position);
    order.sort_unstable_by_key(|&position| wanted[position].start);
    let mut cut: [&'a mut [f32]; N] = std::array::from_fn(|_| Default::default());
    let mut gaps: [(usize, &'a [f32]); GAPS] = [(0, &[]); GAPS];
    let (mut behind, mut start, mut gap) = (arena, 0, 0);
    for position in order {
        let range = wanted[position];
        if range.is_empty() {
            continue;
        }
        let (before, at) = behind.split_at_mut(range.start - start);
        let (taken, after) = at.split_at_mut(range.len());
        gaps[gap] = (start, before);
        cut[position] = taken;
        (behind, start, gap) = (after, range.end, gap + 1);
    }
    gaps[gap] = (start, behind);
    (cut, Rest { gaps })
}

/// Around three ranges that are cut out there are at most so many gaps.
const GAPS: usize = 4;

/// The arena without what is being written.
struct Rest<'a> {
    /// Where each begins in the arena, in order.
    gaps: [(usize, &'a [f32]); GAPS],
}

impl<'a> Rest<'a> {
    fn get(&self, range: &Range<usize>) -> &'a [f32] {
        let holds = |(start, gap): &&(usize, &[f32])| *start <= range.start && range.end <= start + gap.len();
        let (start, gap) = self.gaps.iter().find(holds).expect("what is read is not being written");
        &gap[range.start - start..range.end - start]
    }
}

/// What an instruction may write of the arena, and what it may read.
struct Memory<'a> {
    saved: &'a mut [f32],
    scratch: &'a mut [f32],
    rest: Rest<'a>,
}

/// Everything that an instruction may write.
struct Outputs<'a> {
    output: &'a mut [f32],
    saved: &'a mut [f32],
    scratch: &'a mut [f32],
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
    Outputs { output, saved, scratch }: Outputs<'_>,
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
        Kernel::Conv2d { conv, bias } => {
            let epilogue = match bias {
                Bias::None => Epilogue::Bare,
                Bias::Add => Epilogue::Bias(input(2)),
                Bias::AddRelu => Epilogue::BiasRelu(input(2)),
            };
            cpu::conv2d(output, input(0), input(1), epilogue, &conv, scratch, threads);
        }
        Kernel::Conv2dInputGrad(conv) => {
            cpu::conv2d_input_grad(output, input(1), input(0), &conv, scratch, threads);
        }
        Kernel::Conv2dKernelGrad(conv) => {
            cpu::conv2d_kernel_grad(output, input(0), input(1), &conv, scratch, threads);
        }
        Kernel::MaxPool2d(pool) => {
            let argmax = &mut bytemuck::cast_slice_mut(saved)[..output.len()];
            cpu::max_pool(output, argmax, input(0), &pool, threads);
        }
        Kernel::MaxPool2dGrad(pool) => {
            let argmax = &bytemuck::cast_slice(input(0))[..input(1).len()];
            cpu::max_pool_grad(output, input(1), argmax, &pool, threads);
        }
        Kernel::AveragePool2d(pool) => cpu::average_pool(output, input(0), &pool, threads),
        Kernel::AveragePool2dGrad(pool) => cpu::average_pool_grad(output, input(0), &pool, threads),
        Kernel::GlobalAveragePool(shape) => cpu::global_average_pool(output, input(0), shape),
        Kernel::GlobalAveragePoolGrad(shape) => cpu::global_average_pool_grad(output, input(0), shape),
        Kernel::Accuracy => output[0] = cpu::count_correct(input(0), labels) as f32 / labels.len() as f32,
    }
    Ok(())
}

fn matrix(data: &[f32], Matrix { rows, cols, transposed }: Matrix) -> MatRef<'_> {
    let matrix = MatRef::new(data, rows, cols);
    if transposed { matrix.transpose() } else { matrix }
}
