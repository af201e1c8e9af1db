//! Tells a later run of the chief what a shard holds, so that it can continue the job.

use serde::{Deserialize, Serialize};

use super::{Content, CreateShard, Invalid, no_payload};
use crate::checkpoint::WorkerRecord;
use crate::id::{GlobalStep, Incarnation, Version};
use crate::optimizer::RateSpec;

/// The greatest number of an appointment: a chief must be able to make further ones.
const NUMBER_MAX: u64 = 1 << 62;

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

/// The job that a shard serves, and how far it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldShard {
    /// The request with which the shard was created.
    pub created: CreateShard,
    /// The number of updates that the shard has applied.
    pub version: Version,
    /// The version at which the shard was created.
    pub began: Version,
    /// Whether a worker has used the shard.
    pub touched: bool,
    /// The step at which the shard stops.
    pub end: GlobalStep,
    /// Whether the last request to stop before the job's last step was one of a drain.
    #[serde(default)]
    pub drains: bool,
    /// The learning rate at the shard's last update, with a change that has been decided.
    pub rate: RateSpec,
    /// The version that the shard does not pass until its learning rate is set, if it waits for one.
    #[serde(default)]
    pub hold: Option<Version>,
    /// The last push of each worker that has pushed, and its position in its input.
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
    /// Whether this incarnation has left.
    #[serde(default)]
    pub left: bool,
    /// The incarnation that is a member, which may be an earlier one.
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
            if held.members.iter().any(|member| member.number > NUMBER_MAX) {
                return Err(Invalid(format!("an appointment has a number above {NUMBER_MAX}")));
            }
            held.rate.validate().map_err(|error| Invalid(error.to_string()))?;
        }
        no_payload(segments)
    }
}
