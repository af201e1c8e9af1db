//! Operations on the rows of a matrix: softmax, its logarithm and their gradients. A row has `n` elements.

use super::lanes::RowLanes;
use super::{Operation, Slot, count};
use crate::driver::Argument;
use crate::source::Library;

impl Operation {
    /// x → the softmax of each row.
    pub fn softmax(rows: usize, n: usize) -> Self {
        on_rows("softmax", 1, rows, n, &[Slot::Number(Argument::U32(0))])
    }

    /// x, whose rows form square matrices → the softmax of the first i + 1 elements of row i of each matrix,
    /// and 0 for the others.
    pub fn causal_softmax(rows: usize, n: usize) -> Self {
        on_rows("softmax", 1, rows, n, &[Slot::Number(Argument::U32(1))])
    }

    /// The softmax y, dy → dx.
    pub fn softmax_grad(rows: usize, n: usize) -> Self {
        on_rows("softmax_grad", 2, rows, n, &[])
    }

    /// x → the logarithm of the softmax of each row.
    pub fn log_softmax(rows: usize, n: usize) -> Self {
        on_rows("log_softmax", 1, rows, n, &[])
    }

    /// The logarithm y, dy → dx.
    pub fn log_softmax_grad(rows: usize, n: usize) -> Self {
        on_rows("log_softmax_grad", 2, rows, n, &[])
    }
}

/// Returns an operation that one kernel of the library does.
fn on_rows(kernel: &str, inputs: usize, rows: usize, n: usize, settings: &[Slot]) -> Operation {
    if rows * n == 0 {
        return Operation::nothing();
    }
    let lanes = RowLanes::of(n);
    let places = [Slot::Output(0)].into_iter().chain((0..inputs).map(Slot::Input));
    let arguments: Vec<Slot> =
        places.chain([count(rows), count(n), lanes.slot()]).chain(settings.iter().copied()).collect();
    Operation::default().then(Library::Rows, kernel, lanes.grid(rows), &arguments)
}
