//! The unused memory of a buffer pool, in cache lines. Knows no buffer.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use parking_lot::Mutex;
use pushpull_messages::tensor::ALIGNMENT;

/// One cache line. A vector of these is aligned without unsafe code.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct Line([u8; ALIGNMENT]);

/// Returns the number of lines that `bytes` bytes take.
pub(super) const fn lines_for(bytes: usize) -> usize {
    bytes.div_ceil(ALIGNMENT)
}

/// Allocates zeroed lines; large allocations cost nothing until they are touched.
pub(super) fn fresh_lines(lines: usize) -> Vec<Line> {
    bytemuck::zeroed_vec(lines)
}

/// The shared, bounded stock of unused lines.
#[derive(Clone)]
pub(super) struct Stock(Arc<Mutex<Allocations>>);

struct Allocations {
    /// The unused allocations by exact length in lines: a training loop needs the same few sizes again and
    /// again.
    free: BTreeMap<usize, Vec<Vec<Line>>>,
    lines: usize,
    lines_max: usize,
}

impl Stock {
    /// Returns an empty stock that keeps at most `bytes_max` bytes.
    pub(super) fn new(bytes_max: usize) -> Self {
        let lines_max = lines_for(bytes_max);
        Self(Arc::new(Mutex::new(Allocations { free: BTreeMap::new(), lines: 0, lines_max })))
    }

    /// Takes an allocation of exactly this length, if there is one. Its content is left over from earlier
    /// use.
    pub(super) fn take(&self, lines: usize) -> Option<Vec<Line>> {
        let mut allocations = self.0.lock();
        let kept = allocations.free.get_mut(&lines).and_then(Vec::pop);
        if kept.is_some() {
            allocations.lines -= lines;
        }
        if allocations.free.get(&lines).is_some_and(Vec::is_empty) {
            allocations.free.remove(&lines);
        }
        kept
    }

    /// Returns the bytes in stock.
    pub(super) fn bytes(&self) -> usize {
        self.0.lock().lines * ALIGNMENT
    }

    /// Puts an allocation into the stock, or frees it if it is larger than the whole stock may be.
    pub(super) fn put(&self, lines: Vec<Line>) {
        let count = lines.len();
        // Freed after the lock is released.
        let mut unwanted = Vec::new();
        let mut allocations = self.0.lock();
        if count == 0 || count > allocations.lines_max {
            drop(allocations);
            return;
        }
        while allocations.lines + count > allocations.lines_max {
            // The stock is full, perhaps of sizes that are no longer used: those go first.
            let other = allocations.free.keys().rev().copied().find(|&size| size != count).unwrap_or(count);
            let of_size = allocations.free.get_mut(&other).expect("a size in stock");
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
