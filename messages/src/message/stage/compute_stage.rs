//! Has a stage compute its part of a batch.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, no_payload, value_sets};
use crate::job::BATCH_SIZE_MAX;

/// A request from the leader to a stage: compute your part of a batch. Values that the stage needs from other
/// stages arrive as [`StageValue`](super::StageValue).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComputeStage {
    /// The number of the run, greater than that of all earlier runs of the leader's incarnation.
    pub run: u64,
    /// The seed of the batch's random numbers.
    pub random: u64,
    /// The number of the set of values from which to compute.
    pub values: u64,
    /// The numbers of the other sets of values that the stage still has to keep.
    #[serde(default)]
    pub keep: Vec<u64>,
    /// The number of examples of a batch that is evaluated. `None` for a batch that is trained on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluates: Option<u32>,
}

impl Content for ComputeStage {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        value_sets(&self.keep)?;
        if let Some(examples) = self.evaluates
            && !(1..=BATCH_SIZE_MAX).contains(&examples)
        {
            return Err(Invalid(format!(
                "evaluates {examples} examples, expected from 1 to {BATCH_SIZE_MAX}"
            )));
        }
        no_payload(segments)
    }
}

/// The reply to [`ComputeStage`]: the part is computed, and its gradients wait to be pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageComputed {}

impl Content for StageComputed {}
