//! Has a stage push the gradients that it has computed.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, no_payload, value_sets};
use crate::id::{GlobalStep, LocalStep, Version};
use crate::message::Verdict;
use crate::placement::SHARDS_MAX;

/// A request from the leader to a stage: push the gradients of the last batch, and pull the values for the
/// next step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PushStage {
    /// The number of the step, counted by the leader.
    pub local_step: LocalStep,
    /// The number of batches that the leader has taken from its input.
    pub drawn: u64,
    /// For each shard of the stage, the version of the values from which the gradients were computed, in the
    /// order of the placement's shards.
    pub versions: Vec<Version>,
    /// If some shards of the replica are behind the others: only shards below this version get the
    /// push. The others reply with their latest values.
    #[serde(default)]
    pub front: Option<Version>,
    /// The number under which the stage keeps the values.
    pub values: u64,
    /// The numbers of the other sets of values that the stage still has to keep.
    #[serde(default)]
    pub keep: Vec<u64>,
}

impl Content for PushStage {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        shards(self.versions.len())?;
        value_sets(&self.keep)?;
        no_payload(segments)
    }
}

/// The reply to [`PushStage`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StagePushed {
    /// The reply of each shard of the stage, in the order of the placement's shards.
    pub shards: Vec<StageReply>,
}

impl Content for StagePushed {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        replies(&self.shards)?;
        no_payload(segments)
    }
}

/// What a shard has replied to a push or a pull of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageReply {
    /// The version of the values.
    pub version: Version,
    /// The step at which the shard stops.
    pub last_step: GlobalStep,
    /// The number of the worker's next step, from the reply to a pull; 0 after a push.
    #[serde(default)]
    pub step: GlobalStep,
    /// The verdict on the push; `None` after a pull.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
}

pub(super) fn replies(replies: &[StageReply]) -> Result<(), Invalid> {
    shards(replies.len())
}

fn shards(count: usize) -> Result<(), Invalid> {
    match count {
        0..=SHARDS_MAX => Ok(()),
        _ => Err(Invalid(format!("names {count} shards, expected at most {SHARDS_MAX}"))),
    }
}
