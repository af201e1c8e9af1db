//! Tells a shard which incarnation of a worker may be a member. Only the chief decides this.

use serde::{Deserialize, Serialize};

use super::Content;
use crate::id::Incarnation;

/// A message from the chief to a ps task: this incarnation is the worker from now on. It may join the shard,
/// and every other incarnation of the worker has ended. Sending the message twice has no further effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Appoint {
    /// The shard's index in the ps task.
    pub shard: u32,
    /// The index of the worker task.
    pub worker: u32,
    /// The incarnation of the worker that may join.
    pub incarnation: Incarnation,
    /// The number of the appointment. Of two appointments of a worker, the one with the greater number is
    /// the later one, whichever arrives first.
    pub number: u64,
}

impl Content for Appoint {}

/// The reply of a ps task to [`Appoint`]: the shard lets only this incarnation join, or knows a later
/// appointment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Appointed {}

impl Content for Appointed {}
