//! Sends a value from one task to another while a run is in progress. The value is the only segment of the
//! payload.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, RunKey, one_segment_per_tensor};
use crate::tensor::TensorSpec;

/// A value that crosses between tasks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transfer {
    /// The run.
    pub run: RunKey,
    /// The number of the part that gets the value.
    pub part: u32,
    /// The key of the value among the values that the part gets.
    pub value: u64,
    /// The shape and type of the value.
    pub tensor: TensorSpec,
}

impl Content for Transfer {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        one_segment_per_tensor(1, segments)
    }
}

/// The reply to [`Transfer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transferred {}

impl Content for Transferred {}
