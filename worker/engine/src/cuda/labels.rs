//! Checks the integers of a batch before a device reads them, because a kernel cannot report an error. This
//! module must not depend on devices.

use pushpull_kernels::cpu::{check_ids, check_labels};
use pushpull_messages::input::Column;

use crate::error::StepFault;
use crate::feed::Feed;
use crate::ir::Kernel;
use crate::memory::{Instruction, Place};

/// Checks the integers that an instruction reads. Only columns hold integers. `examples` is the number of
/// examples of the device's part of the batch.
///
/// # Errors
/// If a label is not one of the classes, or an id is not the index of a row of its embedding table.
pub(super) fn check(instruction: &Instruction, feed: Feed<'_>, examples: usize) -> Result<(), StepFault> {
    let Instruction { kernel, sizes, inputs, .. } = instruction;
    let integers = |input: usize| {
        let Place::Column(column) = inputs[input] else { unreachable!("integers are columns") };
        let Column::I32(numbers) = &feed.columns[column] else { unreachable!("a column of integers") };
        let count = sizes.inputs[input];
        let first = feed.first * count.checked_div(examples).unwrap_or(0);
        &numbers[first..first + count]
    };
    let rows = |table: usize, width: usize| table.checked_div(width).unwrap_or(0);
    match kernel {
        Kernel::Gather { width } => check_ids(integers(1), rows(sizes.inputs[0], *width))?,
        Kernel::Scatter { width } => check_ids(integers(0), rows(sizes.outputs[0], *width))?,
        Kernel::SoftmaxCrossEntropy | Kernel::SoftmaxCrossEntropyGrad => {
            let labels = integers(1);
            check_labels(labels, rows(sizes.inputs[0], labels.len()))?;
        }
        Kernel::AucCounts => check_labels(integers(1), 2)?,
        _ => {}
    }
    Ok(())
}
