//! Changes the factor of the learning rate, at the same version on every shard.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, no_payload};
use crate::optimizer::RateChange;

/// A request from the chief to a ps task whose shard waits at a version, as [`HoldAt`](super::HoldAt)
/// requested: use a new factor of the learning rate from this version on, and continue.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SetLearningRate {
    /// The shard's index in the ps task.
    pub shard: u32,
    /// The change. Its field `from` is the version at which the shard waits.
    pub change: RateChange,
}

impl Content for SetLearningRate {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        self.change.validate().map_err(|error| Invalid(error.to_string()))?;
        no_payload(segments)
    }
}

/// The reply of a ps task to [`SetLearningRate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearningRateSet {}

impl Content for LearningRateSet {}
