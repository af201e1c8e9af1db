//! Keeps the values of a shard within one frame: slices that no longer fit on a shard go to further shards of
//! the same ps task, which starts them when they are created.

use std::collections::BTreeMap;

use pushpull_messages::id::ShardId;
use pushpull_messages::placement::SHARDS_PER_TASK_MAX;
use pushpull_messages::tensor::ALIGNMENT;

/// Returns the size of the largest slice, in bytes, with which a slice and its padding take at most
/// `shard_bytes_max` bytes.
pub(super) fn slice_bytes_max(shard_bytes_max: u64) -> u64 {
    let line = ALIGNMENT as u64;
    (shard_bytes_max / line * line).max(line)
}

/// The number of bytes on each shard so far, and the further shards of each ps task.
///
/// A slice stays on the shard that the strategy or its device has chosen if it fits there, or if the shard is
/// empty. Otherwise it goes to the task's last further shard, and if it does not fit there either, to a new
/// one. So the seat of a slice depends only on earlier slices, as (D) of `place` requires.
pub(super) struct Overflow {
    shard_bytes_max: u64,
    bytes: BTreeMap<ShardId, u64>,
    /// For each task, the index of its next new shard, and its last further shard.
    tasks: BTreeMap<u32, (u32, Option<ShardId>)>,
}

impl Overflow {
    /// Returns the state before the first slice. `shards` are the shards that the tasks have announced.
    pub(super) fn new(shard_bytes_max: u64, shards: &[ShardId]) -> Self {
        let mut tasks = BTreeMap::new();
        for shard in shards {
            let (next, _) = tasks.entry(shard.ps).or_insert((0, None));
            *next = shard.shard.saturating_add(1).max(*next);
        }
        Self { shard_bytes_max, bytes: BTreeMap::new(), tasks }
    }

    /// Returns the shard that gets a slice of `bytes` bytes, with its padding. `shard` is the one that the
    /// strategy has chosen. Returns `None` if the task would have more shards than [`SHARDS_PER_TASK_MAX`].
    pub(super) fn seat(&mut self, shard: ShardId, bytes: u64) -> Option<ShardId> {
        let (next, last) = self.tasks.entry(shard.ps).or_default();
        let fits = |shard: &ShardId| {
            let before = self.bytes.get(shard).copied().unwrap_or_default();
            before == 0 || before.saturating_add(bytes) <= self.shard_bytes_max
        };
        let seat = match [Some(shard), *last].into_iter().flatten().find(fits) {
            Some(seat) => seat,
            None if *next >= SHARDS_PER_TASK_MAX => return None,
            None => {
                let new = ShardId::new(shard.ps, *next);
                (*next, *last) = (*next + 1, Some(new));
                new
            }
        };
        *self.bytes.entry(seat).or_default() += bytes;
        Some(seat)
    }

    /// Returns the shards of all tasks, in ascending order: those that were announced, and the further ones.
    pub(super) fn shards(&self, announced: &[ShardId]) -> Vec<ShardId> {
        let mut shards: Vec<ShardId> = announced.iter().chain(self.bytes.keys()).copied().collect();
        shards.sort_unstable();
        shards.dedup();
        shards
    }
}
