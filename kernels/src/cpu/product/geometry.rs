//! [`Product`]: the shapes of one matrix product, checked once, and the plan for its computation. This
//! module must not depend on the inner loops.

use super::{DEPTH, FEW_ROWS, FLIP_ROWS, PANEL};
use crate::cpu::threads::Threads;
use crate::cpu::window::{BadGeometry, volume};

/// The shapes of a product `dst = a · b`: `a` `[m, k]`, `b` `[k, n]`, `dst` `[m, n]`, all row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    pub(super) m: usize,
    pub(super) k: usize,
    pub(super) n: usize,
    /// True if `a` is stored as `[k, m]` instead of `[m, k]`.
    pub(super) transpose_a: bool,
    /// True if `b` is stored as `[n, k]` instead of `[k, n]`.
    pub(super) transpose_b: bool,
}

/// The least number of floating-point operations for which it is worth waking a thread.
pub(super) const FLOPS_PER_TASK: usize = 1 << 20;
/// The number of floats that are added to the scratch memory, so that the used part can start on a cache
/// line.
pub(super) const ALIGN: usize = 16;

impl Product {
    /// Returns the shapes of the product of `a`, `[m, k]`, and `b`, `[k, n]`. If `transpose_a` is true, `a`
    /// is stored as `[k, m]`; if `transpose_b` is true, `b` is stored as `[n, k]`.
    ///
    /// # Errors
    /// If a matrix of these shapes would be longer than a slice can be.
    pub fn new([m, k, n]: [usize; 3], transpose_a: bool, transpose_b: bool) -> Result<Self, BadGeometry> {
        for sides in [[m, k], [k, n], [m, n]] {
            volume(&sides)?;
        }
        Ok(Self { m, k, n, transpose_a, transpose_b })
    }

    /// Returns `[m, k, n]`.
    pub fn sizes(&self) -> [usize; 3] {
        [self.m, self.k, self.n]
    }

    /// Returns whether `a` and `b` are stored transposed.
    pub fn transposed(&self) -> [bool; 2] {
        [self.transpose_a, self.transpose_b]
    }

    /// Returns the number of floats of scratch memory that [`matmul`](super::matmul()) needs with `threads`.
    /// The memory holds a reordered copy of an operand, which is made only if it saves more time than it
    /// takes.
    pub fn scratch(&self, threads: Threads) -> usize {
        let plan = self.plan();
        let packed = if plan.packs { self.k * plan.cols } else { 0 };
        match packed + self.tasks(threads) * plan.slot {
            0 => 0,
            len => len + ALIGN,
        }
    }

    /// Returns the number of elements of `a`, `b` and `dst`.
    pub(super) fn lens(&self) -> [usize; 3] {
        [self.m * self.k, self.k * self.n, self.m * self.n]
    }

    pub(super) fn flops(&self) -> usize {
        self.m.saturating_mul(self.k).saturating_mul(self.n).saturating_mul(2)
    }

    pub(super) fn tasks(&self, threads: Threads) -> usize {
        threads.tasks(self.flops(), FLOPS_PER_TASK)
    }

    /// Returns true if the product is flipped: computed as `dstᵀ = bᵀ · aᵀ`, and stored transposed.
    ///
    /// The right-hand matrix, `b` or `aᵀ`, is read in vectors along its rows, so it must be transposed first
    /// if it is stored transposed. The product is flipped if this takes less work in total. The work includes
    /// all transpositions, and the unused part of the last vector of each row. A flipped product also needs a
    /// transposition of its result.
    pub(super) fn is_flipped(&self) -> bool {
        let cost = |flipped: bool| {
            let cols = if flipped { self.m } else { self.n };
            // The time to transpose an element, as a number of multiply-additions.
            const TRANSPOSED: usize = 8;
            let transposed = match flipped {
                true if !self.transpose_a => self.m * (self.k + self.n),
                true => self.m * self.n,
                false if self.transpose_b => self.k * self.n,
                false => 0,
            };
            let rows = if flipped { self.n } else { self.m };
            let madds = rows.saturating_mul(self.k).saturating_mul(cols.next_multiple_of(16));
            madds.saturating_add(transposed.saturating_mul(TRANSPOSED))
        };
        cost(true) < cost(false)
    }

    /// Returns the plan for computing the product.
    pub(super) fn plan(&self) -> Plan {
        let flipped = self.is_flipped();
        let (rows, cols, transposes, across) = match flipped {
            true => (self.n, self.m, !self.transpose_a, !self.transpose_b),
            false => (self.m, self.n, self.transpose_b, self.transpose_a),
        };
        // Rows that are far apart in memory compete for a few sets of the cache. Copying them side by side is
        // worthwhile for the right-hand matrix if many tiles read it, and for the left-hand matrix if it has
        // many such rows.
        let packs = transposes || (rows >= 192 && cols > PANEL);
        let gathers = across && !flipped && self.k >= 128 && cols > PANEL;
        // A block of rows is multiplied with one panel after the other. If all panels fit into the
        // second-level cache, they stay there, and the blocks may be small. If not, the blocks must be
        // large, so that each loaded panel is used often.
        const PANELS_LEN_MAX: usize = 1 << 17;
        const MANY_ROWS: usize = 96;
        let fit = self.k * cols <= PANELS_LEN_MAX;
        let block_rows = if fit || gathers { FEW_ROWS } else { MANY_ROWS };
        let slot = match (flipped, gathers) {
            (true, _) => FLIP_ROWS * PANEL,
            (false, true) => FEW_ROWS * self.k.min(DEPTH / 2 * 3),
            (false, false) => 0,
        };
        Plan { flipped, cols, transposes, packs, gathers, block_rows, slot }
    }
}

/// The plan for computing a product as a left-hand matrix times a right-hand matrix. These are `a` and `b`,
/// or, if the product is flipped, `bᵀ` and `aᵀ`.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    /// True if the left-hand matrix is `bᵀ`, the right-hand matrix is `aᵀ`, and the result is transposed
    /// when it is stored.
    pub flipped: bool,
    /// The number of columns of the right-hand matrix.
    pub cols: usize,
    /// True if the right-hand matrix is stored transposed.
    pub transposes: bool,
    /// True if the right-hand matrix is copied into panels first.
    pub packs: bool,
    /// True if each block of rows of the left-hand matrix is copied to scratch memory before it is read.
    /// Only a matrix that is stored transposed is copied in this way.
    pub gathers: bool,
    /// The number of rows in a block of the left-hand matrix. A block is multiplied with one panel after
    /// another.
    pub block_rows: usize,
    /// The number of floats of scratch memory for each parallel task.
    pub slot: usize,
}
