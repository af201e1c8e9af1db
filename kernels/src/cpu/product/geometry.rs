//! [`Product`]: the shapes of one matrix product, checked once, and which way it is computed. It must not
//! know the inner loops.

use super::{DEPTH, FEW_ROWS, FLIP_ROWS, PANEL};
use crate::cpu::threads::Threads;
use crate::cpu::window::{BadGeometry, volume};

/// The shapes of a product `dst = a · b`: `a` `[m, k]`, `b` `[k, n]`, `dst` `[m, n]`, all row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    pub(super) m: usize,
    pub(super) k: usize,
    pub(super) n: usize,
    /// `a` is stored `[k, m]`, not `[m, k]`.
    pub(super) transpose_a: bool,
    /// `b` is stored `[n, k]`, not `[k, n]`.
    pub(super) transpose_b: bool,
}

/// Flops below which a task is not worth waking a thread.
pub(super) const FLOPS_PER_TASK: usize = 1 << 20;
/// Floats to align the scratch to a cache line.
pub(super) const ALIGN: usize = 16;

impl Product {
    /// Returns the product of `a`, `[m, k]` (stored `[k, m]` with `transpose_a`), and `b`, `[k, n]` (stored
    /// `[n, k]` with `transpose_b`).
    ///
    /// # Errors
    /// If a slice cannot be as long as the shapes ask.
    pub fn new([m, k, n]: [usize; 3], transpose_a: bool, transpose_b: bool) -> Result<Self, BadGeometry> {
        for sides in [[m, k], [k, n], [m, n]] {
            volume(&sides)?;
        }
        Ok(Self { m, k, n, transpose_a, transpose_b })
    }

    /// `[m, k, n]`.
    pub fn sizes(&self) -> [usize; 3] {
        [self.m, self.k, self.n]
    }

    /// Returns the floats of scratch that [`matmul`](super::matmul()) needs with `threads`: a copy of an
    /// operand in another order, if the product reads it more often than that takes.
    pub fn scratch(&self, threads: Threads) -> usize {
        let plan = self.plan();
        let packed = if plan.packs { self.k * plan.cols } else { 0 };
        match packed + self.tasks(threads) * plan.slot {
            0 => 0,
            len => len + ALIGN,
        }
    }

    /// Returns the elements of `a`, `b` and `dst`.
    pub(super) fn lens(&self) -> [usize; 3] {
        [self.m * self.k, self.k * self.n, self.m * self.n]
    }

    pub(super) fn flops(&self) -> usize {
        self.m.saturating_mul(self.k).saturating_mul(self.n).saturating_mul(2)
    }

    pub(super) fn tasks(&self, threads: Threads) -> usize {
        threads.tasks(self.flops(), FLOPS_PER_TASK)
    }

    /// Returns whether `dstᵀ = bᵀ · aᵀ` is computed, and stored transposed.
    ///
    /// The right matrix is read in vectors along its rows, so one that is stored transposed must be
    /// transposed first. Where transposing the other one and the result is less work, the product is flipped.
    pub(super) fn is_flipped(&self) -> bool {
        let cost = |flipped: bool| {
            let cols = if flipped { self.m } else { self.n };
            // A transposed element takes as long as a few multiplications and additions.
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

    /// How it is computed.
    pub(super) fn plan(&self) -> Plan {
        let flipped = self.is_flipped();
        let (rows, cols, transposes, across) = match flipped {
            true => (self.n, self.m, !self.transpose_a, !self.transpose_b),
            false => (self.m, self.n, self.transpose_b, self.transpose_a),
        };
        // Rows that lie far apart fall on few places of a cache. Those of the right matrix are worth a copy
        // if many tiles read them, those of the left one if they are many.
        let packs = transposes || (rows >= 192 && cols > PANEL);
        let gathers = across && !flipped && self.k >= 128 && cols > PANEL;
        // While some rows meet one panel after the other the panels stay in the second cache, if they fit,
        // and the result passes through; if not, many rows must meet a panel once it is there.
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

/// How a product is computed: as a left matrix times a right one, which are `a` and `b` or the other way
/// round.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    /// The left matrix is `bᵀ`, the right one `aᵀ`, and the result is transposed.
    pub flipped: bool,
    /// Columns of the right matrix.
    pub cols: usize,
    /// The right matrix is stored transposed.
    pub transposes: bool,
    /// The right matrix is copied into panels first.
    pub packs: bool,
    /// The left matrix is stored transposed, and some rows at a time are copied side by side.
    pub gathers: bool,
    /// Rows of the left matrix that are multiplied with one panel after the other.
    pub block_rows: usize,
    /// The floats of scratch of each task.
    pub slot: usize,
}
