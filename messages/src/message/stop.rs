//! Stops a ps task.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, REASON_BYTES_MAX, no_payload, text_within};

/// Chief to ps: the job is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// The reason.
    pub reason: StopReason,
}

/// The way in which the job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The job trained to the end.
    Completed,
    /// The job was stopped early, and a checkpoint has its whole state.
    Saved,
    /// The job failed, for this reason.
    Failed(String),
}

impl StopReason {
    /// Makes the reason of a failed job; a very long text is cut.
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

/// Ps to chief: the task stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopped {}

impl Content for Stopped {}
