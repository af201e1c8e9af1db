//! Runs the kernels of products, embeddings, convolutions and poolings. This module must not depend on where
//! values are stored.

use pushpull_kernels::cpu::{self};

use super::{Call, Outputs};
use crate::error::StepFault;
use crate::ir::Kernel;

/// Runs a product, an embedding, a convolution or a pooling.
///
/// # Errors
/// If an id is not the number of a row of the embedding table, or an input is lost.
pub(super) fn run(call: &Call<'_>, outputs: Outputs<'_>) -> Result<(), StepFault> {
    let Outputs { output, more: [second, _], scratch } = outputs;
    let threads = call.sources.threads;
    match &call.instruction.kernel {
        Kernel::Product(factors, epilogue) => {
            let epilogue = call.epilogue(*epilogue)?;
            cpu::matmul(
                output,
                call.input(0)?,
                call.input(1)?,
                &factors.product(),
                epilogue,
                scratch,
                threads,
            );
        }
        Kernel::BatchedProduct(batch, factors) => {
            cpu::batched_matmul(
                output,
                call.input(0)?,
                call.input(1)?,
                *batch,
                &factors.product(),
                scratch,
                threads,
            );
        }
        Kernel::Gather { width } => {
            cpu::gather_rows(output, call.input(0)?, call.integers(1)?, *width, threads)?
        }
        Kernel::Scatter { width } => {
            output.fill(0.0);
            cpu::scatter_add_rows(output, call.integers(0)?, call.input(1)?, *width, threads)?;
        }
        Kernel::Conv2d(conv, epilogue) => {
            let epilogue = call.epilogue(*epilogue)?;
            cpu::conv2d(output, call.input(0)?, call.input(1)?, epilogue, conv, scratch, threads);
        }
        Kernel::Conv2dInputGrad(conv) => {
            cpu::conv2d_input_grad(output, call.input(1)?, call.input(0)?, conv, scratch, threads);
        }
        Kernel::Conv2dKernelGrad(conv) => {
            cpu::conv2d_kernel_grad(output, call.input(0)?, call.input(1)?, conv, scratch, threads);
        }
        Kernel::MaxPool2d(pool) => {
            let argmax = &mut bytemuck::cast_slice_mut(second)[..output.len()];
            cpu::max_pool(output, argmax, call.input(0)?, pool, threads);
        }
        Kernel::MaxPool2dGrad(pool) => {
            let argmax = &bytemuck::cast_slice(call.input(0)?)[..call.input(1)?.len()];
            cpu::max_pool_grad(output, call.input(1)?, argmax, pool, threads);
        }
        Kernel::AveragePool2d(pool) => cpu::average_pool(output, call.input(0)?, pool, threads),
        Kernel::AveragePool2dGrad(pool) => cpu::average_pool_grad(output, call.input(0)?, pool, threads),
        Kernel::GlobalAveragePool(shape) => cpu::global_average_pool(output, call.input(0)?, *shape, threads),
        Kernel::GlobalAveragePoolGrad(shape) => {
            cpu::global_average_pool_grad(output, call.input(0)?, *shape, threads)
        }
        kernel => unreachable!("{kernel:?} is no product"),
    }
    Ok(())
}
