//! Runs one instruction: calls its kernel on its inputs and outputs in memory. Also computes how much
//! scratch memory a kernel needs. This module must not depend on the graph.

mod elements;
mod products;
mod rows;
mod scores;

use pushpull_kernels::cpu::{self, Side, Threads};
use pushpull_messages::tensor::DType;

use crate::columns::{ColumnRef, ColumnSource};
use crate::error::StepFault;
use crate::feed::Feed;
use crate::ir::{Epilogue, Kernel};
use crate::memory::{Instruction, Place};
use crate::split_arena::Rest;
use crate::values::ValueSource;

/// The memory that an instruction may write.
pub(super) struct Outputs<'a> {
    pub output: &'a mut [f32],
    /// The second and the third output.
    pub more: [&'a mut [f32]; 2],
    pub scratch: &'a mut [f32],
}

/// The memory that an instruction may read.
pub(super) struct Sources<'a> {
    pub rest: Rest<'a>,
    pub values: &'a dyn ValueSource,
    pub feed: Feed<'a>,
    /// The columns, which are requested only when an instruction reads them.
    pub source: &'a dyn ColumnSource,
    /// For each column, the number of elements of one example and their type; `None` if no instruction reads
    /// the column.
    pub columns: &'a [Option<(usize, DType)>],
    /// The number of examples in this device's part of the batch.
    pub batch: usize,
    pub threads: Threads,
}

impl<'a> Sources<'a> {
    fn floats(&self, place: &Place) -> Result<&'a [f32], StepFault> {
        Ok(match place {
            Place::Arena(range) => self.rest.get(range),
            Place::Variable(variable) => self.values.variable(*variable),
            Place::Column(column) => match self.source.column(*column)? {
                ColumnRef::F32(numbers) => self.share(*column, numbers),
                ColumnRef::I32(_) => unreachable!("{place:?} is of integers"),
            },
            Place::Gradient(_) => unreachable!("{place:?} is never read"),
        })
    }

    fn integers(&self, place: &Place) -> Result<&'a [i32], StepFault> {
        match place {
            Place::Column(column) => match self.source.column(*column)? {
                ColumnRef::I32(numbers) => Ok(self.share(*column, numbers)),
                ColumnRef::F32(_) => unreachable!("{place:?} is of floats"),
            },
            _ => unreachable!("{place:?} is of floats"),
        }
    }

    /// Returns the part of a column that holds this device's examples.
    fn share<T>(&self, column: usize, numbers: &'a [T]) -> &'a [T] {
        let (elements, _) = self.columns[column].expect("a column that is read");
        let first = self.feed.first * elements;
        &numbers[first..first + self.batch * elements]
    }
}

/// Returns the number of floats of scratch memory that a kernel needs.
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

/// An instruction, and everything that it may read.
pub(super) struct Call<'a> {
    pub instruction: &'a Instruction,
    pub sources: Sources<'a>,
}

impl<'a> Call<'a> {
    fn input(&self, position: usize) -> Result<&'a [f32], StepFault> {
        self.sources.floats(&self.instruction.inputs[position])
    }

    fn integers(&self, position: usize) -> Result<&'a [i32], StepFault> {
        self.sources.integers(&self.instruction.inputs[position])
    }

    fn epilogue(&self, epilogue: Epilogue) -> Result<cpu::Epilogue<'a>, StepFault> {
        Ok(match epilogue {
            Epilogue::Bare => cpu::Epilogue::Bare,
            Epilogue::Bias => cpu::Epilogue::Bias(self.input(2)?),
            Epilogue::BiasRelu => cpu::Epilogue::BiasRelu(self.input(2)?),
        })
    }
}

/// Runs one instruction.
///
/// # Errors
/// If a label is not one of the classes, an id is not the index of a row of its embedding table, or an input
/// is lost.
pub(super) fn execute(call: &Call<'_>, outputs: Outputs<'_>) -> Result<(), StepFault> {
    match &call.instruction.kernel {
        kernel @ (Kernel::Column(_)
        | Kernel::Variable(_)
        | Kernel::View
        | Kernel::Narrow { .. }
        | Kernel::Attention(_)
        | Kernel::AttentionGrad(_)) => {
            unreachable!("{kernel:?} is never an instruction of the processor")
        }
        Kernel::Constant(..)
        | Kernel::Share
        | Kernel::Copy
        | Kernel::ToFloat
        | Kernel::Unary(..)
        | Kernel::UnaryGrad(..)
        | Kernel::Binary(..)
        | Kernel::Chain(..)
        | Kernel::Reduce(..)
        | Kernel::MaxGrad(..)
        | Kernel::Expand(..)
        | Kernel::SumRows
        | Kernel::Transpose { .. }
        | Kernel::Concat { .. }
        | Kernel::Slice { .. }
        | Kernel::Paste { .. } => elements::run(call, outputs),
        Kernel::Product(..)
        | Kernel::BatchedProduct(..)
        | Kernel::Gather { .. }
        | Kernel::Scatter { .. }
        | Kernel::Conv2d(..)
        | Kernel::Conv2dInputGrad(..)
        | Kernel::Conv2dKernelGrad(..)
        | Kernel::MaxPool2d(..)
        | Kernel::MaxPool2dGrad(..)
        | Kernel::AveragePool2d(..)
        | Kernel::AveragePool2dGrad(..)
        | Kernel::GlobalAveragePool(..)
        | Kernel::GlobalAveragePoolGrad(..) => products::run(call, outputs),
        Kernel::Moments { .. }
        | Kernel::ReciprocalStddev { .. }
        | Kernel::BatchNorm
        | Kernel::BatchNormGrad { .. }
        | Kernel::LayerNorm { .. }
        | Kernel::LayerNormGrad { .. }
        | Kernel::Dropout { .. }
        | Kernel::Softmax { .. }
        | Kernel::SoftmaxGrad { .. }
        | Kernel::LogSoftmax { .. }
        | Kernel::LogSoftmaxGrad { .. } => rows::run(call, outputs),
        Kernel::SoftmaxCrossEntropy
        | Kernel::SoftmaxCrossEntropyGrad
        | Kernel::SoftmaxCrossEntropyDense { .. }
        | Kernel::SoftmaxCrossEntropyDenseGrad { .. }
        | Kernel::SigmoidCrossEntropy
        | Kernel::SigmoidCrossEntropyGrad
        | Kernel::MeanSquaredError
        | Kernel::MeanSquaredErrorGrad
        | Kernel::TopK { .. }
        | Kernel::AucCounts => scores::run(call, outputs),
    }
}
