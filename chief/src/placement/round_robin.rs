//! The strategy `round_robin`: slices go to one shard after the other, in the order of creation, whatever
//! their names and sizes.

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
    /// Adding a variable at the end moves no other (D), because the shard depends only on the slices before.
    /// After any number of slices the shards' counts differ by at most one (E).
    pub fn take(&mut self) -> usize {
        let position = self.next;
        self.next = (position + 1) % self.shards;
        position
    }
}
