//! Tells a later run of the chief what a shard holds, so that this run can continue the job.

use serde::{Deserialize, Serialize};

use super::appoint::validate_number;
use super::{Content, CreateShard, Invalid, no_payload};
use crate::checkpoint::WorkerRecord;
use crate::id::{GlobalStep, Incarnation, Version};
use crate::optimizer::RateSpec;

/// A request from the chief to a ps task: what does this shard hold?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspect {
    /// The shard's index in the ps task.
    pub shard: u32,
}

impl Content for Inspect {}

/// The reply of a ps task to [`Inspect`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inspected {
    /// What the shard holds; `None` if no variables have been created.
    pub held: Option<Box<HeldShard>>,
}

/// The job that a shard serves, and the shard's progress.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldShard {
    /// The request with which the shard was created.
    pub created: CreateShard,
    /// The number of updates that the shard has applied.
    pub version: Version,
    /// The version at which the shard was created.
    pub began: Version,
    /// Whether a worker has joined the shard, pushed to it, or pulled its values for a step.
    pub touched: bool,
    /// The step at which the shard stops.
    pub end: GlobalStep,
    /// The value of `drains` in the last [`StopAt`](super::StopAt) that the shard accepted; false if it
    /// accepted none.
    #[serde(default)]
    pub drains: bool,
    /// The factor of the learning rate at the shard's last update, and the next change of the factor, if the
    /// shard knows of one.
    pub rate: RateSpec,
    /// The version that the shard does not pass until its learning rate is set; `None` if it waits for no
    /// learning rate.
    #[serde(default)]
    pub hold: Option<Version>,
    /// The records of the workers that have pushed: each worker's last push, and the worker's position in its
    /// input.
    pub workers: Vec<WorkerRecord>,
    /// The membership of each worker, indexed by worker.
    pub members: Vec<HeldMember>,
}

/// The membership of a worker in a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldMember {
    /// The number of the worker's last appointment; 0 if it was never appointed.
    pub number: u64,
    /// The incarnation that was appointed last.
    #[serde(default)]
    pub appointed: Option<Incarnation>,
    /// Whether the incarnation in `appointed` has left.
    #[serde(default)]
    pub left: bool,
    /// The incarnation that is now a member of the shard, if any. It may be an earlier incarnation than
    /// `appointed`.
    #[serde(default)]
    pub member: Option<Incarnation>,
}

impl Content for Inspected {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        if let Some(held) = &self.held {
            held.created.validate(segments)?;
            let (members, workers) = (held.members.len(), held.created.workers);
            if members != workers as usize {
                return Err(Invalid(format!("got {members} members, expected {workers}")));
            }
            held.members.iter().try_for_each(|member| validate_number(member.number))?;
            held.rate.validate().map_err(|error| Invalid(error.to_string()))?;
        }
        no_payload(segments)
    }
}
