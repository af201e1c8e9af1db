//! Tells a shard that a worker has left the membership, so that no policy waits for it.

use serde::{Deserialize, Serialize};

use super::Content;
use crate::id::Incarnation;

/// Chief to ps: an incarnation of a worker has left. It does not affect later incarnations; a repetition
/// changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leave {
    /// The shard's index in the ps task.
    pub shard: u32,
    /// The index of the worker task.
    pub worker: u32,
    /// The incarnation of the worker.
    pub incarnation: Incarnation,
}

impl Content for Leave {}

/// Ps to chief: the shard no longer waits for that worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {}

impl Content for Left {}
