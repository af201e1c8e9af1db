//! Ends the training before the job's last step, at the same step on every shard.

use serde::{Deserialize, Serialize};

use super::Content;
use crate::id::{GlobalStep, Version};

/// Chief to ps: the shard's last step, unless the job's comes first. A shard that is already beyond it
/// changes nothing and replies its version; the chief then sends a later step to all shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopAt {
    /// The shard's index in the ps task.
    pub shard: u32,
    /// The new last step; may be later than one sent before.
    pub step: GlobalStep,
}

impl Content for StopAt {}

/// Ps to chief: the shard's version. The shard will stop at the requested step if it is not beyond it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoppingAt {
    /// The updates applied.
    pub version: Version,
}

impl Content for StoppingAt {}
