//! Kernels that work on single elements, reduce them or move them. This module must not depend on where
//! values are stored.

use pushpull_kernels::cpu::{self, Side, Step};

use super::{Call, Outputs};
use crate::error::StepFault;
use crate::fuse::OPERANDS_MAX;
use crate::ir::Kernel;

/// Runs a kernel that works on single elements, reduces them or moves them.
///
/// # Errors
/// If an input is lost.
pub(super) fn run(call: &Call<'_>, outputs: Outputs<'_>) -> Result<(), StepFault> {
    let Outputs { output, scratch, .. } = outputs;
    let threads = call.sources.threads;
    match &call.instruction.kernel {
        Kernel::Constant(value) => output.fill(*value),
        Kernel::Share => {
            output[0] = call.sources.batch as f32 / call.sources.feed.examples as f32;
        }
        Kernel::Copy => output.copy_from_slice(call.input(0)?),
        Kernel::ToFloat => {
            for (output, &integer) in output.iter_mut().zip(call.integers(0)?) {
                *output = integer as f32;
            }
        }
        Kernel::Unary(op) => cpu::unary(output, call.input(0)?, *op, threads),
        Kernel::UnaryGrad(op) => cpu::unary_grad(output, call.input(0)?, call.input(1)?, *op, threads),
        Kernel::Binary(op, shapes) => {
            cpu::binary(output, call.input(0)?, call.input(1)?, *op, shapes, threads)
        }
        Kernel::Chain(steps) => chain(output, steps, call)?,
        Kernel::Reduce(reduction, shapes) => cpu::reduce(output, call.input(0)?, *reduction, shapes, Side::A),
        Kernel::MaxGrad(shapes) => {
            let scratch = &mut scratch[..shapes.operand_len(Side::A)];
            cpu::reduce_max_grad(
                output,
                [call.input(0)?, call.input(1)?, call.input(2)?],
                scratch,
                shapes,
                Side::A,
            );
        }
        Kernel::Expand(shapes) => cpu::expand(output, call.input(0)?, shapes, Side::A),
        Kernel::SumRows => cpu::sum_rows(output, call.input(0)?, threads),
        Kernel::Transpose { shape, axes } => cpu::transpose(output, call.input(0)?, shape, axes, threads),
        Kernel::Concat { shape, parts } => {
            for (position, part) in parts.iter().enumerate() {
                cpu::paste_part(output, call.input(position)?, shape, *part);
            }
        }
        Kernel::Slice { shape, part } => cpu::copy_part(output, call.input(0)?, shape, *part),
        Kernel::Paste { shape, part } => {
            output.fill(0.0);
            cpu::paste_part(output, call.input(0)?, shape, *part);
        }
        kernel => unreachable!("{kernel:?} moves no elements"),
    }
    Ok(())
}

/// Runs a chain of element-wise steps. The first step reads the first input or, if the instruction works in
/// place, `output` itself. All other inputs are operands.
fn chain(output: &mut [f32], steps: &[Step], call: &Call<'_>) -> Result<(), StepFault> {
    let mut inputs = (0..call.instruction.inputs.len()).map(|position| call.input(position));
    let first = if call.instruction.in_place { None } else { inputs.next().transpose()? };
    let mut operands: [&[f32]; OPERANDS_MAX] = [&[]; OPERANDS_MAX];
    for (operand, input) in operands.iter_mut().zip(inputs) {
        *operand = input?;
    }
    cpu::chain(output, first, steps, &operands, call.sources.threads);
    Ok(())
}
