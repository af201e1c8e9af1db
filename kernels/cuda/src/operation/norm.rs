//! Normalisations of matrices: batch norm has a mean and a variance for each column, and layer norm has them
//! for each row. The outputs must not replace the inputs.

use super::columns::Columns;
use super::lanes::RowLanes;
use super::{Operation, Slot, count, thread_for_each};
use crate::driver::Argument;
use crate::source::Library;

use Slot::{Input, Kept, Made, Output, Scratch};

impl Operation {
    /// x of the shape `[rows, n]` → the mean of each column, and its (biased) variance. Both are NaN if there
    /// are no rows.
    pub fn moments([rows, n]: [usize; 2]) -> Self {
        if n == 0 {
            return Self::nothing();
        }
        let columns = Columns::to_reduce(rows, n);
        let first_stage = |to: [Slot; 2]| {
            let arguments = columns.arguments(&[to[0], to[1], Input(0)]);
            Self::default().then(Library::Norm, "column_moments", columns.grid(), &arguments)
        };
        if columns.chunks == 1 {
            return first_stage([Output(0), Output(1)]);
        }
        let [means, squares] = [0, columns.bytes()];
        let second = columns.second_stage();
        let mut arguments = second.arguments(&[Output(0), Output(1), Input(0), Kept(means), Kept(squares)]);
        arguments.extend([count(rows), count(columns.chunk)]);
        first_stage([Scratch(means), Scratch(squares)])
            .then(Library::Norm, "merge_moments", second.grid(), &arguments)
            .with_scratch(2 * columns.bytes())
    }

    /// The variance of each of `n` columns → 1 / √(variance + epsilon).
    pub fn reciprocal_stddev(n: usize, epsilon: f32) -> Self {
        if n == 0 {
            return Self::nothing();
        }
        let arguments = [Output(0), Input(0), count(n), Slot::Number(Argument::F32(epsilon))];
        Self::default().then(Library::Norm, "reciprocal_stddev", thread_for_each(n), &arguments)
    }

    /// x of the shape `[rows, n]`, the mean and the reciprocal standard deviation of each column, gamma, beta
    /// → y.
    pub fn batch_norm(rows: usize, n: usize) -> Self {
        if rows * n == 0 {
            return Self::nothing();
        }
        let columns = Columns::for_each(rows, n);
        let arguments = columns.arguments(&[Output(0), Input(0), Input(1), Input(2), Input(3), Input(4)]);
        Self::default().then(Library::Norm, "batch_norm", columns.grid(), &arguments)
    }

    /// x of the shape `[rows, n]`, dy, the mean and the reciprocal standard deviation of each column, gamma →
    /// dx, dgamma, dbeta.
    pub fn batch_norm_grad([rows, n]: [usize; 2]) -> Self {
        let sums = gradients_of_columns("batch_norm_sums", [rows, n]);
        if rows * n == 0 {
            return sums;
        }
        let columns = Columns::for_each(rows, n);
        let places = [Output(0), Input(0), Input(1), Input(2), Input(3), Input(4), Made(1), Made(2)];
        sums.then(Library::Norm, "batch_norm_grad", columns.grid(), &columns.arguments(&places))
    }

    /// x of the shape `[rows, n]`, gamma, beta → y, the mean and the reciprocal standard deviation of each
    /// row.
    pub fn layer_norm([rows, n]: [usize; 2], epsilon: f32) -> Self {
        if rows * n == 0 {
            return Self::nothing();
        }
        let lanes = RowLanes::of(n);
        let places = [Output(0), Output(1), Output(2), Input(0), Input(1), Input(2)];
        let numbers = [count(rows), count(n), lanes.slot(), Slot::Number(Argument::F32(epsilon))];
        Self::default().then(Library::Norm, "layer_norm", lanes.grid(rows), &[&places[..], &numbers].concat())
    }

    /// x of the shape `[rows, n]`, dy, the mean and the reciprocal standard deviation of each row, gamma →
    /// dx, dgamma, dbeta.
    pub fn layer_norm_grad([rows, n]: [usize; 2]) -> Self {
        let sums = gradients_of_columns("layer_norm_sums", [rows, n]);
        if rows * n == 0 {
            return sums;
        }
        let lanes = RowLanes::of(n);
        let places = [Output(0), Input(0), Input(1), Input(2), Input(3), Input(4)];
        let numbers = [count(rows), count(n), lanes.slot()];
        sums.then(Library::Norm, "layer_norm_grad", lanes.grid(rows), &[&places[..], &numbers].concat())
    }
}

/// Returns the operation that writes dgamma and dbeta, the second and the third output of a gradient.
/// `kernel` writes the sums of each chunk.
fn gradients_of_columns(kernel: &str, [rows, n]: [usize; 2]) -> Operation {
    if n == 0 {
        return Operation::nothing();
    }
    let columns = Columns::to_reduce(rows, n);
    let sums = |to: [Slot; 2]| {
        let places = [to[0], to[1], Input(0), Input(1), Input(2), Input(3)];
        Operation::default().then(Library::Norm, kernel, columns.grid(), &columns.arguments(&places))
    };
    if columns.chunks == 1 {
        return sums([Output(1), Output(2)]);
    }
    let [dgammas, dbetas] = [0, columns.bytes()];
    let second = columns.second_stage();
    let arguments = second.arguments(&[Output(1), Output(2), Kept(dgammas), Kept(dbetas)]);
    sums([Scratch(dgammas), Scratch(dbetas)])
        .then(Library::Columns, "sum_columns_of_two", second.grid(), &arguments)
        .with_scratch(2 * columns.bytes())
}
