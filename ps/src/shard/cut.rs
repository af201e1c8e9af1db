//! The state of a shard at one version, as data: what a save writes, and what a shard continues from. The
//! buffers are shared and never change. Knows no file.

use std::sync::Arc;

use pushpull_messages::checkpoint::WorkerRecord;
use pushpull_messages::id::{SliceId, Version};
use pushpull_messages::message::{CreateShard, Save};
use pushpull_transport::buffer::Buffer;

/// The state of a shard at the version of a save: all its slices, and what it remembers of every worker.
#[derive(Debug)]
pub struct Cut {
    /// The save that was requested.
    pub save: Save,
    /// The creation of the shard.
    pub created: Arc<CreateShard>,
    /// The slices, in the placement's order.
    pub slices: Vec<SliceState>,
    /// The last push of every worker, by worker.
    pub workers: Vec<WorkerRecord>,
}

/// The state that a shard begins with instead of initial values.
#[derive(Debug, Default)]
pub struct Restored {
    /// The updates that are in it.
    pub version: Version,
    /// The slices, in the placement's order; those left out begin with their initial values.
    pub slices: Vec<SliceState>,
    /// The last push of every worker.
    pub workers: Vec<WorkerRecord>,
}

/// The state of a slice at one version.
#[derive(Clone, Debug)]
pub struct SliceState {
    /// The slice's number in the placement.
    pub id: SliceId,
    /// The value.
    pub value: Arc<Buffer>,
    /// The moving average of the value, where one is kept.
    pub average: Option<Arc<Buffer>>,
    /// The optimizer's slots beside it; empty where they begin with their initial values.
    pub slots: Vec<Arc<Buffer>>,
}
