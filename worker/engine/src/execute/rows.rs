//! Kernels that work on rows: normalisations, dropout and softmax. This module must not depend on where
//! values are stored.

use pushpull_kernels::cpu::{self, Key};

use super::{Call, Outputs};
use crate::error::StepFault;
use crate::ir::Kernel;

/// Runs a normalisation, a dropout or a softmax.
///
/// # Errors
/// If an input is lost.
pub(super) fn run(call: &Call<'_>, outputs: Outputs<'_>) -> Result<(), StepFault> {
    let Outputs { output, more: [second, third], scratch } = outputs;
    let threads = call.sources.threads;
    match &call.instruction.kernel {
        Kernel::Moments { .. } => cpu::column_moments(output, second, call.input(0)?, scratch, threads),
        Kernel::ReciprocalStddev { epsilon } => cpu::reciprocal_stddev(output, call.input(0)?, *epsilon),
        Kernel::BatchNorm => {
            cpu::batch_norm(
                output,
                call.input(0)?,
                [call.input(1)?, call.input(2)?],
                [call.input(3)?, call.input(4)?],
                threads,
            );
        }
        Kernel::BatchNormGrad { .. } => {
            let (both, statistics) = ([call.input(0)?, call.input(1)?], [call.input(2)?, call.input(3)?]);
            cpu::batch_norm_grad(output, [second, third], both, statistics, call.input(4)?, scratch, threads);
        }
        Kernel::LayerNorm { epsilon } => {
            cpu::layer_norm(
                output,
                [second, third],
                call.input(0)?,
                [call.input(1)?, call.input(2)?],
                *epsilon,
                threads,
            );
        }
        Kernel::LayerNormGrad { .. } => {
            let (both, statistics) = ([call.input(0)?, call.input(1)?], [call.input(2)?, call.input(3)?]);
            cpu::layer_norm_grad(output, [second, third], both, statistics, call.input(4)?, scratch, threads);
        }
        Kernel::Dropout { rate, stream, example } => {
            let key = Key { seed: call.sources.feed.random, stream: *stream };
            let first = (call.sources.feed.first * example) as u64;
            match call.instruction.in_place {
                true => cpu::dropout_in_place(output, key, first, *rate),
                false => cpu::dropout(output, call.input(0)?, key, first, *rate),
            }
        }
        Kernel::Softmax { width, causal: false } => cpu::softmax(output, call.input(0)?, *width, threads),
        Kernel::Softmax { width, causal: true } => {
            cpu::causal_softmax(output, call.input(0)?, *width, threads)
        }
        Kernel::SoftmaxGrad { width } => {
            cpu::softmax_grad(output, call.input(0)?, call.input(1)?, *width, threads)
        }
        Kernel::LogSoftmax { width } => cpu::log_softmax(output, call.input(0)?, *width, threads),
        Kernel::LogSoftmaxGrad { width } => {
            cpu::log_softmax_grad(output, call.input(0)?, call.input(1)?, *width, threads)
        }
        kernel => unreachable!("{kernel:?} works on no rows"),
    }
    Ok(())
}
