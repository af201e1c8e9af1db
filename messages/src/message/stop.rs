//! The orderly end of a ps task.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, REASON_BYTES_MAX, no_payload, text_within};

/// Chief to ps: the job is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// Why.
    pub reason: StopReason,
}

/// How the job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// It trained to the end.
    Completed,
    /// It was told to stop before, and all that was trained is in a checkpoint.
    Saved,
    /// It did not, for this reason.
    Failed(String),
}

impl StopReason {
    /// For that reason, which is cut if it is very long.
    pub fn failed(reason: impl std::fmt::Display) -> Self {
        Self::Failed(super::reason(reason))
    }
}

impl Content for Stop {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        if let StopReason::Failed(reason) = &self.reason {
            text_within("reason", reason, REASON_BYTES_MAX)?;
        }
        no_payload(segments)
    }
}

/// Ps to chief: going.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopped {}

impl Content for Stopped {}
