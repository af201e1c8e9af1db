//! Runs operations on the rows of a matrix in a device's memory. The formulas are those of
//! `pushpull_kernels::cpu`.

use crate::driver::{Argument, Driver, DriverError, Grid, Launch, Place};
use crate::source::LANES;

/// The largest number of blocks. With more rows, a block works on several of them.
const BLOCKS_MAX: u64 = 4096;

/// An operation on each row of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOperation {
    /// x → the softmax of each row.
    Softmax,
    /// x, whose rows form square matrices → the softmax of the first i + 1 elements of row i of each matrix,
    /// and 0 for the others.
    CausalSoftmax,
    /// The softmax y, dy → dx.
    SoftmaxGrad,
    /// x → the logarithm of the softmax of each row.
    LogSoftmax,
    /// The logarithm y, dy → dx.
    LogSoftmaxGrad,
}

impl RowOperation {
    /// Returns the number of matrices that the operation reads.
    pub const fn inputs(self) -> usize {
        match self {
            Self::Softmax | Self::CausalSoftmax | Self::LogSoftmax => 1,
            Self::SoftmaxGrad | Self::LogSoftmaxGrad => 2,
        }
    }

    /// Writes the result for `rows` rows of `n` elements to `to`, which may not overlap an input.
    ///
    /// # Errors
    /// Returns the errors of [`Driver::launch`]. [`Source::rows`](crate::Source::rows) must have been loaded.
    ///
    /// # Panics
    /// If the number of inputs differs from that of the operation.
    pub fn run(
        self,
        driver: &mut dyn Driver,
        to: Place,
        inputs: &[Place],
        rows: u64,
        n: u64,
    ) -> Result<(), DriverError> {
        assert_eq!(inputs.len(), self.inputs(), "the inputs of {self:?}");
        if rows * n == 0 {
            return Ok(());
        }
        let (kernel, causal) = match self {
            Self::Softmax => ("softmax", Some(0)),
            Self::CausalSoftmax => ("softmax", Some(1)),
            Self::SoftmaxGrad => ("softmax_grad", None),
            Self::LogSoftmax => ("log_softmax", None),
            Self::LogSoftmaxGrad => ("log_softmax_grad", None),
        };
        let mut arguments: Vec<_> = [to].iter().chain(inputs).copied().map(Argument::Place).collect();
        arguments.extend([rows, n].map(Argument::U64));
        arguments.extend(causal.map(Argument::U32));
        let grid = Grid { blocks: [rows.min(BLOCKS_MAX) as u32, 1, 1], threads: [LANES, 1, 1] };
        driver.launch(Launch { kernel, grid, arguments: &arguments })
    }
}
