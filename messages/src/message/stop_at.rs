//! How the chief lets the training end before the job's last step: every shard at the same one.

use serde::{Deserialize, Serialize};

use super::Content;
use crate::id::{GlobalStep, Version};

/// Chief to ps: this shard's last step is that one, unless the job's comes first. A shard that is beyond it stays as it is,
/// and says so: the chief then names a later one, to all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopAt {
    /// Which shard of the ps task.
    pub shard: u32,
    /// The last step from now on; may be later than one that was named before.
    pub step: GlobalStep,
}

impl Content for StopAt {}

/// Ps to chief: where the shard is. It will stop at the step that was named if that is not behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoppingAt {
    /// Updates applied.
    pub version: Version,
}

impl Content for StoppingAt {}
