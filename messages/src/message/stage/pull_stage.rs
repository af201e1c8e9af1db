//! Has a stage pull the values of the variables that it owns.

use serde::{Deserialize, Serialize};

use super::push_stage::{StageReply, replies};
use super::{Content, Invalid, no_payload, value_sets};
use crate::message::PullAt;

/// A request from the leader to a stage: pull from all of your shards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PullStage {
    /// Which version of the values to pull.
    pub at: PullAt,
    /// Whether to pull the moving averages, if the shards have any, instead of the values.
    #[serde(default)]
    pub averages: bool,
    /// The number under which the stage keeps the values.
    pub values: u64,
    /// The numbers of the other sets of values that the stage still has to keep.
    #[serde(default)]
    pub keep: Vec<u64>,
}

impl Content for PullStage {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        value_sets(&self.keep)?;
        no_payload(segments)
    }
}

/// The reply to [`PullStage`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StagePulled {
    /// The reply of each shard of the stage, in the order of the placement's shards.
    pub shards: Vec<StageReply>,
}

impl Content for StagePulled {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        replies(&self.shards)?;
        no_payload(segments)
    }
}
