//! Pulls the values of a shard. All values in a reply have the same version.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid};
use crate::id::{GlobalStep, PlacementEpoch, SliceId, Version};

/// A request from a worker to a ps task for the values of all slices of one shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pull {
    /// The shard's index in the ps task.
    pub shard: u32,
    /// The epoch of the worker's placement.
    pub epoch: PlacementEpoch,
    /// The digest of the worker's placement, which must equal that of the shard's placement.
    pub placement_digest: u32,
    /// Which version of the values is requested.
    #[serde(default)]
    pub at: PullAt,
    /// Whether to send the moving averages, if the shard has any, instead of the values.
    #[serde(default)]
    pub averages: bool,
}

/// The version of the values that a pull requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PullAt {
    /// The latest version. The shard replies at once.
    #[default]
    Latest,
    /// The latest version. The shard replies at once, and the worker becomes a member. Sending the request
    /// twice has no further effect.
    Join,
    /// The version for the worker's next step. The value is the number of that step. The shard replies when
    /// the policy lets the step begin.
    Step(GlobalStep),
}

impl Content for Pull {}

/// The reply of a ps task to [`Pull`]: the values, one payload segment per slice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pulled {
    /// The version of the values.
    pub version: Version,
    /// The number of the worker's next step, if the worker is a member.
    #[serde(default)]
    pub step: GlobalStep,
    /// The step at which the shard stops.
    pub last_step: GlobalStep,
    /// The slices whose values the segments contain, in the order of the segments.
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
