//! Kernels of losses and metrics. This module must not depend on where values are stored.

use pushpull_kernels::cpu::{self};

use super::{Call, Outputs};
use crate::error::StepFault;
use crate::ir::Kernel;

/// Runs a loss, its gradient or a metric.
///
/// # Errors
/// If a label is not one of the classes, or an input is lost.
pub(super) fn run(call: &Call<'_>, outputs: Outputs<'_>) -> Result<(), StepFault> {
    let Outputs { output, .. } = outputs;
    let threads = call.sources.threads;
    match &call.instruction.kernel {
        Kernel::SoftmaxCrossEntropy => {
            output[0] = cpu::softmax_cross_entropy(call.input(0)?, call.integers(1)?, threads)?
        }
        Kernel::SoftmaxCrossEntropyGrad => {
            cpu::softmax_cross_entropy_grad(
                output,
                call.input(0)?,
                call.integers(1)?,
                call.input(2)?[0],
                threads,
            )?;
        }
        Kernel::SoftmaxCrossEntropyDense { classes } => {
            output[0] = cpu::softmax_cross_entropy_dense(call.input(0)?, call.input(1)?, *classes);
        }
        Kernel::SoftmaxCrossEntropyDenseGrad { classes } => {
            cpu::softmax_cross_entropy_dense_grad(
                output,
                call.input(0)?,
                call.input(1)?,
                *classes,
                call.input(2)?[0],
                threads,
            );
        }
        Kernel::SigmoidCrossEntropy => output[0] = cpu::sigmoid_cross_entropy(call.input(0)?, call.input(1)?),
        Kernel::SigmoidCrossEntropyGrad => {
            cpu::sigmoid_cross_entropy_grad(
                output,
                call.input(0)?,
                call.input(1)?,
                call.input(2)?[0],
                threads,
            );
        }
        Kernel::MeanSquaredError => output[0] = cpu::mean_squared_error(call.input(0)?, call.input(1)?),
        Kernel::MeanSquaredErrorGrad => {
            cpu::mean_squared_error_grad(output, call.input(0)?, call.input(1)?, call.input(2)?[0], threads);
        }
        Kernel::TopK { k } => {
            let labels = call.integers(1)?;
            let correct = match k {
                1 => cpu::count_correct(call.input(0)?, labels),
                _ => cpu::count_in_top_k(call.input(0)?, labels, *k),
            };
            output[0] = correct as f32 / labels.len() as f32;
        }
        Kernel::AucCounts => cpu::auc_counts(output, call.input(0)?, call.integers(1)?)?,
        kernel => unreachable!("{kernel:?} is no score"),
    }
    Ok(())
}
