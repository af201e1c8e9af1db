//! Makes a shard wait at a version until the chief has set the shard's learning rate.

use serde::{Deserialize, Serialize};

use super::Content;
use crate::id::Version;

/// A request from the chief to a ps task: apply no update beyond this version until
/// [`SetLearningRate`](super::SetLearningRate) arrives. While the shard waits, pushes that arrive wait, too.
/// A shard that has already passed this version does not wait, and replies with its own version. In that
/// case, the chief sends all shards a request with a later version, which replaces this request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldAt {
    /// The shard's index in the ps task.
    pub shard: u32,
    /// The version at which the shard waits.
    pub version: Version,
}

impl Content for HoldAt {}

/// The reply of a ps task to [`HoldAt`]. If the version in the reply is at most the requested version, the
/// shard will wait at the requested version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// The shard's version: the number of updates that it has applied.
    pub version: Version,
}

impl Content for Holding {}
