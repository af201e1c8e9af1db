//! Pulls the values of a shard, all of one version.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid};
use crate::id::{GlobalStep, PlacementEpoch, SliceId, Version};

/// Worker to ps: a request for the values of all slices of one shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pull {
    /// The shard's index in the ps task.
    pub shard: u32,
    /// The epoch of the worker's placement.
    pub epoch: PlacementEpoch,
    /// The digest of the worker's placement (P2).
    pub placement_digest: u32,
    /// The requested version.
    #[serde(default)]
    pub at: PullAt,
    /// Whether to send the moving averages, if the shard keeps them, instead of the values.
    #[serde(default)]
    pub averages: bool,
}

/// The version that a pull requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PullAt {
    /// The latest version, at once.
    #[default]
    Latest,
    /// The latest version, at once; the worker becomes a member. A repetition changes nothing.
    Join,
    /// The version for the worker's next step, which has this number, once the policy lets it begin.
    Step(GlobalStep),
}

impl Content for Pull {}

/// Ps to worker: the values, one payload segment per slice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pulled {
    /// The version of the values.
    pub version: Version,
    /// The worker's next step, if it is a member.
    #[serde(default)]
    pub step: GlobalStep,
    /// The step at which the shard stops.
    pub last_step: GlobalStep,
    /// The slices.
    pub slices: Vec<SliceId>,
}

impl Content for Pulled {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        one_segment_per_slice(&self.slices, segments)
    }
}

pub(super) fn one_segment_per_slice(slices: &[SliceId], segments: &[u64]) -> Result<(), Invalid> {
    if slices.len() != segments.len() {
        let (slices, segments) = (slices.len(), segments.len());
        return Err(Invalid(format!(
            "got {segments} payload segments, expected one for each of {slices} slices"
        )));
    }
    if let Some(odd) = segments.iter().find(|&&bytes| bytes % 4 != 0) {
        return Err(Invalid(format!("a segment of f32 has {odd} bytes, expected a multiple of 4")));
    }
    Ok(())
}
