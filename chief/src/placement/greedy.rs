//! The strategy `greedy_load_balancing`: each slice goes to the shard that has the fewest bytes so far.
//! Places slices in the order of creation, without looking ahead at later slices.

use std::collections::BTreeSet;

/// The strategy's state: the number of bytes on each shard so far.
///
/// The heaviest shard exceeds the mean by at most the largest slice, as (C) of `place` requires. The reason:
/// the shard that gets a slice had the fewest bytes, so its load was at most the mean. The slice raises this
/// load to at most the mean plus the size of the slice, and the mean never decreases.
///
/// The heaviest shard never has more bytes than the lightest and the largest part of (I) together: as long as
/// the loads differ by less than a slice, one slice for each shard changes no difference by more than a row;
/// if they differ by more, the slices make the difference smaller. Sorting by size first
/// would balance better (Graham, 1969), but then adding a variable could move all other variables to other
/// shards, which (D) of `place` forbids.
pub(super) struct Greedy {
    bytes: Vec<u64>,
    /// The shards, ordered by bytes and then by position. Among shards with equal bytes the lowest position
    /// wins, so that the result is deterministic, as (A) of `place` requires.
    queue: BTreeSet<(u64, usize)>,
}

impl Greedy {
    /// Creates the strategy for `shards` empty shards.
    pub fn new(shards: usize) -> Self {
        Self { bytes: vec![0; shards], queue: (0..shards).map(|position| (0, position)).collect() }
    }

    /// Returns the position of the shard that gets a slice of `bytes` bytes.
    ///
    /// # Panics
    /// Panics if there are no shards; `place` checks that there is at least one.
    pub fn take(&mut self, bytes: u64) -> usize {
        let &(_, position) = self.queue.first().expect("there is a shard");
        self.add(position, bytes);
        position
    }

    /// Adds the bytes of a slice to the load of its shard. A slice that has an explicit device is added,
    /// too.
    ///
    /// The sum cannot overflow: a placement has at most 2^20 slices of at most 2^42 bytes.
    pub fn add(&mut self, position: usize, bytes: u64) {
        let before = self.bytes[position];
        self.bytes[position] = before + bytes;
        self.queue.remove(&(before, position));
        self.queue.insert((before + bytes, position));
    }
}
