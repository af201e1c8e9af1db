//! Informs a shard that a worker has left the membership, so that the synchronisation policy no longer waits
//! for the worker.

use serde::{Deserialize, Serialize};

use super::Content;
use crate::id::{Incarnation, PlacementEpoch};

/// A message from the chief to a ps task: an incarnation of a worker has left. Later incarnations of the
/// worker are not affected. Sending the message twice has no further effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leave {
    /// The shard's index in the ps task.
    pub shard: u32,
    /// The index of the worker task.
    pub worker: u32,
    /// The incarnation of the worker that has left.
    pub incarnation: Incarnation,
    /// The placement epoch at which the chief decided this. A shard of a later epoch ignores the message: the
    /// chief has told it again which workers have left.
    pub epoch: PlacementEpoch,
}

impl Content for Leave {}

/// The reply of a ps task to [`Leave`]: the shard no longer waits for the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {}

impl Content for Left {}
