//! The strategy `round_robin`: slices go to the shards in turn, in the order of creation. Names and sizes of
//! slices do not matter.

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

    /// Returns the position of the shard that gets the next slice.
    ///
    /// Adding a variable at the end does not move other slices (D), because the shard of a slice depends
    /// only on the slices before it. The numbers of slices on the shards always differ by at most one (E).
    pub fn take(&mut self) -> usize {
        let position = self.next;
        self.next = (position + 1) % self.shards;
        position
    }
}
