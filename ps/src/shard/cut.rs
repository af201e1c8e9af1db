//! The state of a shard at one version, as plain data. A save writes it to a file, and a restored shard
//! continues from it. The buffers are shared with the shard and never change.

use std::sync::Arc;

use pushpull_messages::checkpoint::WorkerRecord;
use pushpull_messages::id::{SliceId, Version};
use pushpull_messages::message::{CreateShard, Save};
use pushpull_messages::optimizer::RateSpec;
use pushpull_transport::buffer::Buffer;

/// The snapshot of a shard that a save writes: all its slices at one version, and its records of the workers.
#[derive(Debug)]
pub struct Cut {
    /// The save for which the snapshot was taken.
    pub save: Save,
    /// The request by which the shard was created.
    pub created: Arc<CreateShard>,
    /// The slices, in the placement's order.
    pub slices: Vec<SliceState>,
    /// The record of every worker's last push, ordered by the workers' indices.
    pub workers: Vec<WorkerRecord>,
}

/// The state that a shard begins with, instead of initial values, when it continues from a checkpoint.
#[derive(Debug, Default)]
pub struct Restored {
    /// The version of the state, which is the number of updates that were applied to it.
    pub version: Version,
    /// The slices, in the placement's order. Slices that are not in the list begin with their initial values.
    pub slices: Vec<SliceState>,
    /// The record of every worker's last push.
    pub workers: Vec<WorkerRecord>,
    /// The factor by which hooks have multiplied the learning rate.
    pub rate: RateSpec,
}

/// The state of a slice at one version.
#[derive(Clone, Debug)]
pub struct SliceState {
    /// The slice's number in the placement.
    pub id: SliceId,
    /// The value of the slice's elements.
    pub value: Arc<Buffer>,
    /// The moving average of the value, if the job keeps averages and the variable is trained.
    pub average: Option<Arc<Buffer>>,
    /// The optimizer's slots of the slice; empty if they begin with their initial values.
    pub slots: Vec<Arc<Buffer>>,
}
