//! Losses, each a mean over its rows or elements, and their gradients. They compute what the kernels of the
//! processor with the same names compute.

use super::lanes::RowLanes;
use super::{Operation, Slot, count, thread_for_each};
use crate::driver::Grid;
use crate::source::Library;

/// The smallest number of elements that a block adds.
const OF_PART_MIN: usize = 1024;

impl Operation {
    /// Logits, integer labels → the loss. A label that is no class makes it NaN.
    pub fn softmax_cross_entropy(rows: usize, classes: usize) -> Self {
        loss_of_rows("cross_entropy", rows, classes)
    }

    /// Logits, integer labels, the adjoint of the loss → the adjoint of the logits. A label that is no class
    /// makes its row NaN.
    pub fn softmax_cross_entropy_grad(rows: usize, classes: usize) -> Self {
        gradient_of_rows("cross_entropy_grad", rows, classes)
    }

    /// Logits, labels of the same shape → the loss.
    pub fn softmax_cross_entropy_dense(rows: usize, classes: usize) -> Self {
        // Rows without classes are no rows for the processor.
        let rows = if classes == 0 { 0 } else { rows };
        loss_of_rows("dense_cross_entropy", rows, classes)
    }

    /// Logits, labels of the same shape, the adjoint of the loss → the adjoint of the logits.
    pub fn softmax_cross_entropy_dense_grad(rows: usize, classes: usize) -> Self {
        gradient_of_rows("dense_cross_entropy_grad", rows, classes)
    }

    /// Logits, labels of the same shape → the loss.
    pub fn sigmoid_cross_entropy(elements: usize) -> Self {
        loss("sigmoid_cross_entropy", elements, OF_PART_MIN, &[])
    }

    /// Logits, labels of the same shape, the adjoint of the loss → the adjoint of the logits.
    pub fn sigmoid_cross_entropy_grad(elements: usize) -> Self {
        gradient("sigmoid_cross_entropy_grad", elements, thread_for_each(elements), &[count(elements)])
    }

    /// a, b → the loss.
    pub fn mean_squared_error(elements: usize) -> Self {
        loss("squared_error", elements, OF_PART_MIN, &[])
    }

    /// a, b, the adjoint of the loss → the adjoint of a.
    pub fn mean_squared_error_grad(elements: usize) -> Self {
        gradient("squared_error_grad", elements, thread_for_each(elements), &[count(elements)])
    }
}

/// Returns a loss: a mean over its items, or 0 if there are none.
fn loss(kernel: &str, items: usize, of_part: usize, settings: &[Slot]) -> Operation {
    if items == 0 {
        return Operation::fill(0.0, 1);
    }
    Operation::mean(Library::Losses, kernel, items, of_part, settings)
}

/// Returns a loss of rows.
fn loss_of_rows(kernel: &str, rows: usize, classes: usize) -> Operation {
    let lanes = RowLanes::of(classes);
    loss(kernel, rows, lanes.of_block(), &[count(classes), lanes.slot()])
}

/// Returns the gradient of a loss of rows.
fn gradient_of_rows(kernel: &str, rows: usize, classes: usize) -> Operation {
    let lanes = RowLanes::of(classes);
    gradient(kernel, rows * classes, lanes.grid(rows), &[count(rows), count(classes), lanes.slot()])
}

/// Returns the gradient of a loss of `elements` elements.
fn gradient(kernel: &str, elements: usize, grid: Grid, sizes: &[Slot]) -> Operation {
    if elements == 0 {
        return Operation::nothing();
    }
    let places = [Slot::Output(0), Slot::Input(0), Slot::Input(1), Slot::Input(2)];
    Operation::default().then(Library::Losses, kernel, grid, &[&places, sizes].concat())
}
