//! The unused memory of a buffer pool: allocations of whole cache lines, from which the pool makes buffers.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use pushpull_messages::tensor::ALIGNMENT;

use super::line::Line;
use super::shared_memory::{Arena, Block};

/// Returns the number of lines that `bytes` bytes occupy.
pub(super) const fn lines_for(bytes: usize) -> usize {
    bytes.div_ceil(ALIGNMENT)
}

/// An allocation of whole cache lines.
pub(super) enum Lines {
    /// Memory of this process.
    Own(Vec<Line>),
    /// Memory that other tasks of the host can read.
    Shared(Block),
}

impl Lines {
    /// Allocates zeroed lines. The operating system zeroes the pages of a large allocation when they are
    /// first used, so the call itself is cheap.
    pub(super) fn fresh(lines: usize) -> Self {
        Self::Own(bytemuck::zeroed_vec(lines))
    }

    pub(super) fn get(&self) -> &[Line] {
        match self {
            Self::Own(lines) => lines,
            Self::Shared(block) => block,
        }
    }

    pub(super) fn get_mut(&mut self) -> &mut [Line] {
        match self {
            Self::Own(lines) => lines,
            Self::Shared(block) => block,
        }
    }

    /// Returns where the lines begin in `arena`, in bytes; `None` if they are elsewhere.
    pub(super) fn place(&self, arena: &Arc<Arena>) -> Option<usize> {
        let Self::Shared(block) = self else { return None };
        let (own, start) = block.place();
        Arc::ptr_eq(own, arena).then_some(start)
    }
}

impl Default for Lines {
    fn default() -> Self {
        Self::Own(Vec::new())
    }
}

/// The shared, bounded list of unused allocations.
#[derive(Clone)]
pub(super) struct FreeList(Arc<Mutex<Allocations>>);

struct Allocations {
    /// The unused allocations by their exact length in lines. A training loop needs the same few sizes again
    /// and again, so there is usually an exact match.
    free: BTreeMap<usize, Vec<Lines>>,
    lines: usize,
    lines_max: usize,
    /// The number of lines that were taken and have not come back.
    used: usize,
}

impl FreeList {
    /// Returns an empty list that may hold at most `bytes_max` bytes.
    pub(super) fn new(bytes_max: usize) -> Self {
        let lines_max = lines_for(bytes_max);
        Self(Arc::new(Mutex::new(Allocations { free: BTreeMap::new(), lines: 0, lines_max, used: 0 })))
    }

    /// Takes an allocation of exactly `lines` lines from the list. If there is none, returns `None`; the
    /// caller then allocates the lines. The allocation may contain data from an earlier use.
    pub(super) fn take(&self, lines: usize) -> Option<Lines> {
        let mut allocations = self.0.lock();
        allocations.used += lines;
        let of_size = allocations.free.get_mut(&lines)?;
        let kept = of_size.pop().expect("a size in the list has an allocation");
        if of_size.is_empty() {
            allocations.free.remove(&lines);
        }
        allocations.lines -= lines;
        Some(kept)
    }

    /// Returns the number of bytes in the list.
    pub(super) fn bytes(&self) -> usize {
        self.0.lock().lines * ALIGNMENT
    }

    /// Returns the number of bytes that were taken and have not come back.
    pub(super) fn bytes_used(&self) -> usize {
        self.0.lock().used * ALIGNMENT
    }

    /// Puts an allocation into the list, and frees other allocations if the list would exceed its bound.
    /// An allocation that is larger than the bound of the list is freed at once.
    pub(super) fn put(&self, lines: Lines) {
        let count = lines.get().len();
        // These allocations are freed after the lock has been released.
        let mut unwanted = Vec::new();
        let mut allocations = self.0.lock();
        allocations.used -= count;
        if count == 0 || count > allocations.lines_max {
            drop(allocations);
            return;
        }
        while allocations.lines + count > allocations.lines_max {
            // Allocations of other sizes are freed first, because the list may be full of sizes that are no
            // longer needed.
            let other = allocations.free.keys().rev().copied().find(|&size| size != count).unwrap_or(count);
            let of_size = allocations.free.get_mut(&other).expect("a size in the list");
            unwanted.extend(of_size.pop());
            if of_size.is_empty() {
                allocations.free.remove(&other);
            }
            allocations.lines -= other;
        }
        allocations.lines += count;
        allocations.free.entry(count).or_default().push(lines);
    }
}
