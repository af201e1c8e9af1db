//! The strategy `round_robin`: one shard after the other, in the order of creation. Knows neither names nor
//! sizes.

/// The next shard in turn.
pub(super) struct RoundRobin {
    next: usize,
    shards: usize,
}

impl RoundRobin {
    /// Begins with the first of `shards` shards.
    pub fn new(shards: usize) -> Self {
        Self { next: 0, shards }
    }

    /// Returns the position of the shard that gets the next slice.
    ///
    /// (D): a turn depends on the slices before it alone. (E): after any number of turns the counts differ
    /// by at most one.
    pub fn take(&mut self) -> usize {
        let position = self.next;
        self.next = (position + 1) % self.shards;
        position
    }
}
