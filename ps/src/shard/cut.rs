//! What a shard is at one version, as data: what a save takes of it, and what a shard goes on from. The buffers are
//! shared and stay as they are. Knows no file.

use std::sync::Arc;

use pushpull_messages::checkpoint::WorkerRecord;
use pushpull_messages::id::{SliceId, Version};
use pushpull_messages::message::{CreateShard, Save};
use pushpull_transport::buffer::Buffer;

/// A shard at the version that a save was asked for: of all its slices, and of what it remembers.
#[derive(Debug)]
pub struct Cut {
    /// What was asked.
    pub save: Save,
    /// Whose slices these are.
    pub created: Arc<CreateShard>,
    /// In the placement's order.
    pub slices: Vec<SliceState>,
    /// By worker.
    pub workers: Vec<WorkerRecord>,
}

/// What a shard begins with instead of initial values.
#[derive(Debug, Default)]
pub struct Restored {
    /// Updates that are in it.
    pub version: Version,
    /// In the placement's order; those that are left out begin as they are initialised.
    pub slices: Vec<SliceState>,
    /// What is remembered of each worker.
    pub workers: Vec<WorkerRecord>,
}

/// A slice at one version.
#[derive(Clone, Debug)]
pub struct SliceState {
    /// Of the placement.
    pub id: SliceId,
    /// Its value.
    pub value: Arc<Buffer>,
    /// The moving average of it, where one is kept.
    pub average: Option<Arc<Buffer>>,
    /// The optimizer's state beside it; none where that begins as it is initialised.
    pub slots: Vec<Arc<Buffer>>,
}
