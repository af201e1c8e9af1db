//! The strategy `round_robin`: each slice, in the order of creation, goes to the next shard; the first shard
//! follows the last. Names and sizes of slices do not matter.

/// The strategy's state: the shard that gets the next slice.
pub(super) struct RoundRobin {
    next: usize,
    shards: usize,
}

impl RoundRobin {
    /// Creates the strategy for `shards` shards, beginning with the first.
    pub fn new(shards: usize) -> Self {
        Self { next: 0, shards }
    }

    /// Returns the index of the shard that gets the next slice.
    ///
    /// Adding a variable at the end does not move other slices, because the shard of a slice depends only on
    /// the slices before it: this is property (D) of `place`. The numbers of slices that this function
    /// assigns to the shards always differ by at most one: this is property (E).
    pub fn take(&mut self) -> usize {
        let position = self.next;
        self.next = (position + 1) % self.shards;
        position
    }
}
