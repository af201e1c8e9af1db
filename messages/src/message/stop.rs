//! Stops a ps task.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, REASON_BYTES_MAX, no_payload, text_within};

/// A request from the chief to a ps task to stop, because the job is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// The way in which the job ended.
    pub reason: StopReason,
}

/// The way in which the job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The job trained to its last step.
    Completed,
    /// The job was stopped early, and its whole state is in a checkpoint.
    Saved,
    /// The job failed, for this reason.
    Failed(String),
}

impl StopReason {
    /// Makes the stop reason of a failed job. A very long reason is truncated.
    pub fn failed(reason: impl std::fmt::Display) -> Self {
        Self::Failed(super::reason(reason))
    }
}

impl Content for Stop {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        if let StopReason::Failed(reason) = &self.reason {
            text_within("the reason", reason, REASON_BYTES_MAX)?;
        }
        no_payload(segments)
    }
}

/// The reply of a ps task to [`Stop`], which confirms that the task stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopped {}

impl Content for Stopped {}
