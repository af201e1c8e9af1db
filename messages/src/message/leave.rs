//! How a shard learns that a worker takes part no more: nobody waits for it from then on.

use serde::{Deserialize, Serialize};

use super::Content;
use crate::id::Incarnation;

/// Chief to ps: this life of a worker is over. Later lives are not meant; the same word once more changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leave {
    /// Which shard of the ps task.
    pub shard: u32,
    /// The index of the worker task.
    pub worker: u32,
    /// Which life of that worker.
    pub incarnation: Incarnation,
}

impl Content for Leave {}

/// Ps to chief: the shard waits for that worker no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {}

impl Content for Left {}
