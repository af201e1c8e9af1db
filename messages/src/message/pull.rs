//! Asking a shard for its values: all of one version, never torn.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid};
use crate::id::{GlobalStep, PlacementEpoch, SliceId, Version};

/// Worker to ps: send the values of all slices of one shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pull {
    /// Which shard of the ps task.
    pub shard: u32,
    /// The placement that the worker holds.
    pub epoch: PlacementEpoch,
    /// Its digest (P2).
    pub placement_digest: u32,
    /// When.
    #[serde(default)]
    pub at: PullAt,
    /// The moving averages, where the shard keeps some, instead of the values.
    #[serde(default)]
    pub averages: bool,
}

/// Which values a pull asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PullAt {
    /// As they are, at once.
    #[default]
    Latest,
    /// As they are, at once; from now on the worker that asks takes part, and is counted. Once more, it changes nothing.
    Join,
    /// For the worker's step of that number, which comes next: as soon as the policy lets it begin.
    Step(GlobalStep),
}

impl Content for Pull {}

/// Ps to worker: values, one payload segment a slice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pulled {
    /// The version of all these values.
    pub version: Version,
    /// The step that comes next of the worker that asks, where it takes part.
    #[serde(default)]
    pub step: GlobalStep,
    /// The step at which the shard stops.
    pub last_step: GlobalStep,
    /// Which slices.
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
        return Err(Invalid(format!("{slices} slices need as many payload segments, and got {segments}")));
    }
    if let Some(odd) = segments.iter().find(|&&bytes| bytes % 4 != 0) {
        return Err(Invalid(format!("a segment of f32 has a multiple of 4 bytes, and got {odd}")));
    }
    Ok(())
}
