//! How blocks divide the columns of matrices, and reductions of columns. This module must not depend on what
//! is computed of the columns.

use pushpull_kernels::cpu::{Broadcast, Reduction};

use super::{Operation, Slot, block_for_each, count};
use crate::driver::{Argument, Grid};
use crate::source::{LANES, Library};

/// The division of a matrix of the shape `[rows, n]` into tiles of columns and chunks of rows: the
/// `ColumnDivision` of the kernels. It depends on the sizes alone, because it determines the order of
/// additions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Columns {
    rows: usize,
    n: usize,
    /// The number of columns in a tile.
    width: usize,
    /// The number of rows in a chunk. The last chunk may have fewer.
    pub chunk: usize,
    pub chunks: usize,
}

impl Columns {
    /// Divides a matrix for a reduction. Few chunks are enough to occupy a device; more of them would delay
    /// the second stage, which adds what the chunks yield. `n` must not be 0.
    pub fn to_reduce(rows: usize, n: usize) -> Self {
        const BLOCKS: usize = 512;
        const CHUNKS_MAX: usize = 256;
        let width = Self::width(n);
        let chunks_max = (BLOCKS / n.div_ceil(width)).min(CHUNKS_MAX);
        Self::divided([rows, n], 16, chunks_max)
    }

    /// Divides a matrix for an operation on each element. `n` must not be 0.
    pub fn for_each(rows: usize, n: usize) -> Self {
        let tiles = n.div_ceil(Self::width(n));
        Self::divided([rows, n], 4, Grid::BLOCKS_MAX as usize / tiles)
    }

    /// Divides a matrix into this number of chunks, each of `chunk` rows. `n` must not be 0.
    pub fn in_chunks(chunk: usize, chunks: usize, n: usize) -> Self {
        Self { rows: chunk * chunks, n, width: Self::width(n), chunk, chunks }
    }

    /// Returns the only chunk of the matrix that has a row for each chunk of this one.
    pub fn second_stage(self) -> Self {
        Self::in_chunks(self.chunks, 1, self.n)
    }

    /// Returns the number of bytes of a matrix of floats that has a row for each chunk.
    pub const fn bytes(self) -> u64 {
        4 * (self.chunks * self.n) as u64
    }

    /// Returns a grid with one block for each tile of each chunk, or with fewer.
    pub fn grid(self) -> Grid {
        block_for_each(self.n.div_ceil(self.width) * self.chunks)
    }

    /// Returns the places, then the arguments that kernels have for the division.
    pub fn arguments(self, places: &[Slot]) -> Vec<Slot> {
        let width = Slot::Number(Argument::U32(self.width as u32));
        let own = [count(self.rows), count(self.n), width, count(self.chunk), count(self.chunks)];
        [places, &own].concat()
    }

    /// Divides a matrix so that each thread has at least `of_thread` rows.
    fn divided([rows, n]: [usize; 2], of_thread: usize, chunks_max: usize) -> Self {
        let width = Self::width(n);
        let least = LANES as usize / width * of_thread;
        let chunk = rows.div_ceil(rows.div_ceil(least).min(chunks_max).max(1)).max(1);
        Self { rows, n, width, chunk, chunks: rows.div_ceil(chunk).max(1) }
    }

    /// Returns the number of columns in a tile. A line of 32 floats is as long as a card reads at once.
    fn width(n: usize) -> usize {
        n.next_power_of_two().min(32)
    }
}

/// Returns the shape `[batch, rows, n]` of a tensor whose reduced axes are `rows`; `None` if they do not lie
/// side by side, or if they are the last of several axes.
pub(super) fn as_columns(shapes: &Broadcast) -> Option<[usize; 3]> {
    let axes: Vec<(usize, bool)> = shapes.axes().map(|(size, [kept, _])| (size, kept)).collect();
    match axes[..] {
        [(rows, false)] => Some([1, rows, 1]),
        [(n, true), (rows, false)] => Some([1, rows, n]),
        [(n, true), (rows, false), (batch, true)] => Some([batch, rows, n]),
        _ => None,
    }
}

/// Returns the operation x of the shape `[batch, rows, n]` → its columns, reduced to `[batch, n]`. No size
/// but `rows` may be 0, and this only for a sum or a mean.
pub(super) fn reduce_columns(reduction: Reduction, [batch, rows, n]: [usize; 3]) -> Operation {
    let stage = |all: Operation, columns: Columns, [to, from]: [Slot; 2], divisor: f32| {
        let mut arguments = columns.arguments(&[to, from]);
        let kernel = match reduction {
            Reduction::Max => "max_columns",
            Reduction::Sum | Reduction::Mean => {
                arguments.push(Slot::Number(Argument::F32(divisor)));
                "sum_columns"
            }
        };
        all.then(Library::Columns, kernel, columns.grid(), &arguments)
    };
    let divisor = if reduction == Reduction::Mean { rows as f32 } else { 1.0 };
    let columns = match batch {
        1 => Columns::to_reduce(rows, n),
        _ => Columns::in_chunks(rows, batch, n),
    };
    let [to, from] = [Slot::Output(0), Slot::Input(0)];
    if batch > 1 || columns.chunks == 1 {
        return stage(Operation::default(), columns, [to, from], divisor);
    }
    let first = stage(Operation::default(), columns, [Slot::Scratch(0), from], 1.0);
    let second = stage(first, columns.second_stage(), [to, Slot::Kept(0)], divisor);
    second.with_scratch(columns.bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn chunks_cover_all_rows(rows in 0usize..2_000_000, n in 1usize..40_000) {
            for columns in [Columns::to_reduce(rows, n), Columns::for_each(rows, n)] {
                let Columns { width, chunk, chunks, .. } = columns;
                prop_assert!(width.is_power_of_two() && width <= 32);
                prop_assert!(chunk * chunks >= rows && chunk * (chunks - 1) <= rows.saturating_sub(1));
                prop_assert!(u64::from(columns.grid().blocks[0]) <= Grid::BLOCKS_MAX);
            }
        }
    }

    #[test]
    fn many_rows_occupy_many_blocks() {
        for [rows, n] in [[100_000, 1], [100_000, 3], [100_000, 64], [800_000, 64], [8192, 1024]] {
            let columns = Columns::to_reduce(rows, n);
            assert!((24..=512).contains(&columns.grid().blocks[0]), "{columns:?}");
        }
    }
}
