//! Ends the training before the job's last step, at the same step on every shard.

use serde::{Deserialize, Serialize};

use super::Content;
use crate::id::{GlobalStep, Version};

/// A request from the chief to a ps task: stop at this step, or at the job's last step if that comes first.
/// A shard that has already passed the step ignores the request and replies with its version. In that case,
/// the chief sends a later step to all shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopAt {
    /// The shard's index in the ps task.
    pub shard: u32,
    /// The new last step. It may be later than the step of an earlier request.
    pub step: GlobalStep,
    /// Whether another job will continue from this step. If so, the variables are not evaluated.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drains: bool,
}

impl Content for StopAt {}

/// The reply of a ps task to [`StopAt`]. If the version is at most the requested step, the shard will stop at
/// that step. If the shard has accepted a request for a later step, the version in the reply is at least this
/// later step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoppingAt {
    /// The shard's version: the number of updates that it has applied.
    pub version: Version,
}

impl Content for StoppingAt {}
