//! The strategy `greedy_load_balancing`: each slice goes to the shard with the fewest bytes so far. Works
//! online, in the order of creation, and never looks at later slices.

use std::collections::BTreeSet;

/// The bytes on each shard so far.
///
/// (C): a shard that gets a slice had the fewest bytes, so no more than the mean, which only grows; the
/// slice lifts it to no more than the mean and that slice. Sorting by size first would balance better
/// (Graham, 1969), but then one more variable could move all the others, against (D).
pub(super) struct Greedy {
    bytes: Vec<u64>,
    /// The shards by bytes, and among equals by position, so that the lowest shard wins: (A).
    queue: BTreeSet<(u64, usize)>,
}

impl Greedy {
    /// Begins with `shards` empty shards.
    pub fn new(shards: usize) -> Self {
        Self { bytes: vec![0; shards], queue: (0..shards).map(|position| (0, position)).collect() }
    }

    /// Returns the position of the shard that gets a slice of `bytes` bytes.
    ///
    /// # Panics
    /// Panics without shards; `place` makes sure that there is one.
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
