//! The strategy `greedy_load_balancing`: to the shard with the fewest bytes so far.
//! Works online, in the order of creation, and so never looks at what comes later.

use std::collections::BTreeSet;

/// The bytes on each shard so far.
///
/// (C): a shard that gets a slice had the fewest bytes, so no more than the mean, which only grows; the
/// slice lifts it to no more than the mean and that slice. Sorting by size first would balance better
/// (Graham, 1969), but then one more variable could move all the others, against (D).
pub(super) struct Greedy {
    bytes: Vec<u64>,
    /// By bytes, and among equals by position, so that the lowest shard wins: (A).
    queue: BTreeSet<(u64, usize)>,
}

impl Greedy {
    /// `shards` shards without a byte.
    pub fn new(shards: usize) -> Self {
        Self { bytes: vec![0; shards], queue: (0..shards).map(|position| (0, position)).collect() }
    }

    /// The position of the shard that gets a slice of so many bytes.
    ///
    /// # Panics
    /// Where there is no shard; `place` does not come here without one.
    pub fn take(&mut self, bytes: u64) -> usize {
        let &(_, position) = self.queue.first().expect("there is a shard");
        self.add(position, bytes);
        position
    }

    /// Counts bytes that a shard gets by an explicit device.
    ///
    /// The sum cannot overflow: a placement has at most 2^20 slices of at most 2^42 bytes.
    pub fn add(&mut self, position: usize, bytes: u64) {
        let before = self.bytes[position];
        self.bytes[position] = before + bytes;
        self.queue.remove(&(before, position));
        self.queue.insert((before + bytes, position));
    }
}
