//! One instruction: which kernel is called on which memory, and how much scratch memory that takes.

use pushpull_kernels::cpu::{self, Key, Side, Step, Threads};
use pushpull_messages::input::Column;

use super::error::StepFault;
use super::feed::Feed;
use super::fuse::OPERANDS_MAX;
use super::ir::{Epilogue, Kernel};
use super::memory::{Instruction, Place};
use super::program::Program;
use super::rest::Rest;
use super::values::ValueSource;

/// Everything that an instruction may write.
pub(super) struct Outputs<'a> {
    pub output: &'a mut [f32],
    /// The second and the third output.
    pub more: [&'a mut [f32]; 2],
    pub scratch: &'a mut [f32],
}

/// Everything that an instruction may read.
pub(super) struct Sources<'a> {
    pub rest: Rest<'a>,
    pub values: &'a dyn ValueSource,
    pub feed: Feed<'a>,
    pub program: &'a Program,
}

impl<'a> Sources<'a> {
    fn floats(&self, place: &Place) -> &'a [f32] {
        match place {
            Place::Arena(range) => self.rest.get(range),
            Place::Variable(variable) => self.values.variable(*variable),
            Place::Column(column) => match &self.feed.columns[*column] {
                Column::F32(numbers) => self.share(*column, numbers),
                Column::I32(_) => unreachable!("{place:?} is of integers"),
            },
            Place::Gradient(_) => unreachable!("{place:?} is never read"),
        }
    }

    fn integers(&self, place: &Place) -> &'a [i32] {
        match place {
            Place::Column(column) => match &self.feed.columns[*column] {
                Column::I32(numbers) => self.share(*column, numbers),
                Column::F32(_) => unreachable!("{place:?} is of floats"),
            },
            _ => unreachable!("{place:?} is of floats"),
        }
    }

    /// The part of a column that belongs to this device's examples.
    fn share<T>(&self, column: usize, numbers: &'a [T]) -> &'a [T] {
        let (elements, _) = self.program.columns[column].expect("a column that is read");
        let first = self.feed.first * elements;
        &numbers[first..first + self.program.batch * elements]
    }
}

/// Floats of scratch memory that a kernel needs.
pub(super) fn scratch(kernel: &Kernel, threads: Threads) -> usize {
    match kernel {
        Kernel::Product(factors, _) => factors.product().scratch(threads),
        Kernel::BatchedProduct(batch, factors) => {
            cpu::batched_matmul_scratch(*batch, &factors.product(), threads)
        }
        Kernel::Conv2d(conv, _) => conv.forward_scratch(),
        Kernel::Conv2dInputGrad(conv) => conv.input_grad_scratch(),
        Kernel::Conv2dKernelGrad(conv) => conv.kernel_grad_scratch(),
        Kernel::MaxGrad(shapes) => shapes.operand_len(Side::A),
        Kernel::Moments { rows } | Kernel::BatchNormGrad { rows } | Kernel::LayerNormGrad { rows } => {
            cpu::norm_scratch(*rows)
        }
        _ => 0,
    }
}

/// Runs one instruction.
pub(super) fn execute(
    instruction: &Instruction,
    Outputs { output, more: [second, third], scratch }: Outputs<'_>,
    sources: &Sources<'_>,
) -> Result<(), StepFault> {
    let threads = sources.program.threads;
    let input = |position: usize| sources.floats(&instruction.inputs[position]);
    let integers = |position: usize| sources.integers(&instruction.inputs[position]);
    let in_place = instruction.in_place;
    match &instruction.kernel {
        Kernel::Column(_) | Kernel::Variable(_) | Kernel::View => {
            unreachable!("{:?} is where it is", instruction.kernel)
        }
        Kernel::Constant(value) => output.fill(*value),
        Kernel::Share => {
            output[0] = sources.program.batch as f32 / sources.feed.examples as f32;
        }
        Kernel::Copy => output.copy_from_slice(input(0)),
        Kernel::ToFloat => {
            for (output, &integer) in output.iter_mut().zip(integers(0)) {
                *output = integer as f32;
            }
        }

        Kernel::Unary(op) => cpu::unary(output, input(0), *op, threads),
        Kernel::UnaryGrad(op) => cpu::unary_grad(output, input(0), input(1), *op, threads),
        Kernel::Binary(op, shapes) => cpu::binary(output, input(0), input(1), *op, shapes, threads),
        Kernel::Chain(steps) => chain(output, steps, instruction, sources),
        Kernel::Reduce(reduction, shapes) => cpu::reduce(output, input(0), *reduction, shapes, Side::A),
        Kernel::MaxGrad(shapes) => {
            let scratch = &mut scratch[..shapes.operand_len(Side::A)];
            cpu::reduce_max_grad(output, [input(0), input(1), input(2)], scratch, shapes, Side::A);
        }
        Kernel::Expand(shapes) => cpu::expand(output, input(0), shapes, Side::A),
        Kernel::SumRows => cpu::sum_rows(output, input(0), threads),

        Kernel::Transpose { shape, axes } => cpu::transpose(output, input(0), shape, axes, threads),
        Kernel::Concat { shape, parts } => {
            for (position, part) in parts.iter().enumerate() {
                cpu::paste_part(output, input(position), shape, *part);
            }
        }
        Kernel::Slice { shape, part } => cpu::copy_part(output, input(0), shape, *part),
        Kernel::Paste { shape, part } => {
            output.fill(0.0);
            cpu::paste_part(output, input(0), shape, *part);
        }

        Kernel::Product(factors, epilogue) => {
            let epilogue = epilogue_of(*epilogue, instruction, sources);
            cpu::matmul(output, input(0), input(1), &factors.product(), epilogue, scratch, threads);
        }
        Kernel::BatchedProduct(batch, factors) => {
            cpu::batched_matmul(output, input(0), input(1), *batch, &factors.product(), scratch, threads);
        }
        Kernel::Gather { width } => cpu::gather_rows(output, input(0), integers(1), *width, threads)?,
        Kernel::Scatter { width } => {
            output.fill(0.0);
            cpu::scatter_add_rows(output, integers(0), input(1), *width, threads)?;
        }

        Kernel::Conv2d(conv, epilogue) => {
            let epilogue = epilogue_of(*epilogue, instruction, sources);
            cpu::conv2d(output, input(0), input(1), epilogue, conv, scratch, threads);
        }
        Kernel::Conv2dInputGrad(conv) => {
            cpu::conv2d_input_grad(output, input(1), input(0), conv, scratch, threads);
        }
        Kernel::Conv2dKernelGrad(conv) => {
            cpu::conv2d_kernel_grad(output, input(0), input(1), conv, scratch, threads);
        }
        Kernel::MaxPool2d(pool) => {
            let argmax = &mut bytemuck::cast_slice_mut(second)[..output.len()];
            cpu::max_pool(output, argmax, input(0), pool, threads);
        }
        Kernel::MaxPool2dGrad(pool) => {
            let argmax = &bytemuck::cast_slice(input(0))[..input(1).len()];
            cpu::max_pool_grad(output, input(1), argmax, pool, threads);
        }
        Kernel::AveragePool2d(pool) => cpu::average_pool(output, input(0), pool, threads),
        Kernel::AveragePool2dGrad(pool) => cpu::average_pool_grad(output, input(0), pool, threads),
        Kernel::GlobalAveragePool(shape) => cpu::global_average_pool(output, input(0), *shape, threads),
        Kernel::GlobalAveragePoolGrad(shape) => {
            cpu::global_average_pool_grad(output, input(0), *shape, threads)
        }

        Kernel::Moments { .. } => cpu::column_moments(output, second, input(0), scratch, threads),
        Kernel::ReciprocalStddev { epsilon } => cpu::reciprocal_stddev(output, input(0), *epsilon),
        Kernel::BatchNorm => {
            cpu::batch_norm(output, input(0), [input(1), input(2)], [input(3), input(4)], threads);
        }
        Kernel::BatchNormGrad { .. } => {
            let (both, statistics) = ([input(0), input(1)], [input(2), input(3)]);
            cpu::batch_norm_grad(output, [second, third], both, statistics, input(4), scratch, threads);
        }
        Kernel::LayerNorm { epsilon } => {
            cpu::layer_norm(output, [second, third], input(0), [input(1), input(2)], *epsilon, threads);
        }
        Kernel::LayerNormGrad { .. } => {
            let (both, statistics) = ([input(0), input(1)], [input(2), input(3)]);
            cpu::layer_norm_grad(output, [second, third], both, statistics, input(4), scratch, threads);
        }
        Kernel::Dropout { rate, stream, example } => {
            let key = Key { seed: sources.feed.random, stream: *stream };
            let first = (sources.feed.first * example) as u64;
            match in_place {
                true => cpu::dropout_in_place(output, key, first, *rate),
                false => cpu::dropout(output, input(0), key, first, *rate),
            }
        }
        Kernel::Softmax { width, causal: false } => cpu::softmax(output, input(0), *width, threads),
        Kernel::Softmax { width, causal: true } => cpu::causal_softmax(output, input(0), *width, threads),
        Kernel::SoftmaxGrad { width } => cpu::softmax_grad(output, input(0), input(1), *width, threads),
        Kernel::LogSoftmax { width } => cpu::log_softmax(output, input(0), *width, threads),
        Kernel::LogSoftmaxGrad { width } => {
            cpu::log_softmax_grad(output, input(0), input(1), *width, threads)
        }

        Kernel::SoftmaxCrossEntropy => {
            output[0] = cpu::softmax_cross_entropy(input(0), integers(1), threads)?
        }
        Kernel::SoftmaxCrossEntropyGrad => {
            cpu::softmax_cross_entropy_grad(output, input(0), integers(1), input(2)[0], threads)?;
        }
        Kernel::SoftmaxCrossEntropyDense { classes } => {
            output[0] = cpu::softmax_cross_entropy_dense(input(0), input(1), *classes);
        }
        Kernel::SoftmaxCrossEntropyDenseGrad { classes } => {
            cpu::softmax_cross_entropy_dense_grad(output, input(0), input(1), *classes, input(2)[0], threads);
        }
        Kernel::SigmoidCrossEntropy => output[0] = cpu::sigmoid_cross_entropy(input(0), input(1)),
        Kernel::SigmoidCrossEntropyGrad => {
            cpu::sigmoid_cross_entropy_grad(output, input(0), input(1), input(2)[0], threads);
        }
        Kernel::MeanSquaredError => output[0] = cpu::mean_squared_error(input(0), input(1)),
        Kernel::MeanSquaredErrorGrad => {
            cpu::mean_squared_error_grad(output, input(0), input(1), input(2)[0], threads);
        }
        Kernel::TopK { k } => {
            let labels = integers(1);
            let correct = match k {
                1 => cpu::count_correct(input(0), labels),
                _ => cpu::count_in_top_k(input(0), labels, *k),
            };
            output[0] = correct as f32 / labels.len() as f32;
        }
        Kernel::AucCounts => cpu::auc_counts(output, input(0), integers(1))?,
    }
    Ok(())
}

fn epilogue_of<'a>(
    epilogue: Epilogue,
    instruction: &Instruction,
    sources: &Sources<'a>,
) -> cpu::Epilogue<'a> {
    let bias = || sources.floats(&instruction.inputs[2]);
    match epilogue {
        Epilogue::Bare => cpu::Epilogue::Bare,
        Epilogue::Bias => cpu::Epilogue::Bias(bias()),
        Epilogue::BiasRelu => cpu::Epilogue::BiasRelu(bias()),
    }
}

/// Runs the steps of a pass, whose operands stand behind its first value.
fn chain(output: &mut [f32], steps: &[Step], instruction: &Instruction, sources: &Sources<'_>) {
    let mut inputs = instruction.inputs.iter().map(|place| sources.floats(place));
    let first = if instruction.in_place { None } else { inputs.next() };
    let mut operands: [&[f32]; OPERANDS_MAX] = [&[]; OPERANDS_MAX];
    for (operand, input) in operands.iter_mut().zip(inputs) {
        *operand = input;
    }
    cpu::chain(output, first, steps, &operands, sources.program.threads);
}
