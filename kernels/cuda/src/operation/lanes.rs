//! How many threads of a block share a row of a matrix.

use super::{Slot, block_for_each};
use crate::driver::{Argument, Grid};
use crate::source::LANES;

/// The number of threads that share a row: a power of two up to a warp, or the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowLanes(u32);

impl RowLanes {
    /// Returns the threads for rows of `n` elements. A warp needs no barriers; a block reads long rows
    /// faster. Several short rows share a warp.
    pub(super) fn of(n: usize) -> Self {
        const WARP: usize = 32;
        const OF_WARP_MAX: usize = 1024;
        Self(if n <= OF_WARP_MAX { n.next_power_of_two().min(WARP) as u32 } else { LANES })
    }

    /// Returns the number of threads as an argument.
    pub(super) const fn slot(self) -> Slot {
        Slot::Number(Argument::U32(self.0))
    }

    /// Returns the number of rows that a block has at once.
    pub(super) const fn of_block(self) -> usize {
        (LANES / self.0) as usize
    }

    /// Returns a grid for this number of rows.
    pub(super) fn grid(self, rows: usize) -> Grid {
        block_for_each(rows.div_ceil(self.of_block()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_rows_share_a_warp_and_long_ones_have_a_block() {
        let lanes = [0, 1, 2, 3, 8, 10, 16, 17, 1024, 1025].map(|n| RowLanes::of(n).0);
        assert_eq!(lanes, [1, 1, 2, 4, 8, 16, 16, 32, 32, LANES]);
        let blocks = [0, 1, 16, 17, 32, 33].map(|rows| RowLanes::of(10).grid(rows).blocks[0]);
        assert_eq!(blocks, [1, 1, 1, 2, 2, 3]);
    }
}
