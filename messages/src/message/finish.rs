//! How a worker leaves the training, and learns what is left to do.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, REASON_BYTES_MAX, no_payload, text_within};
use crate::id::{GlobalStep, LocalStep};

/// Worker to chief: this worker trains no more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finish {
    /// How it ended.
    pub result: TrainingResult,
    /// Steps that this worker has taken.
    pub local_step: LocalStep,
    /// The mean loss over its last steps; NaN if there were none.
    pub loss: f32,
    /// Steps whose gradients were not finite, and were dropped as the job says.
    #[serde(default)]
    pub skipped: u64,
}

/// How a worker's training ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainingResult {
    /// Every shard has reached the last step.
    Completed,
    /// Its input has ended, as these words say, and the others may have more: it waits for the job's end.
    InputEnded(String),
    /// The worker was told to leave before the end, by a signal or by the chief.
    Interrupted,
    /// It cannot go on, for this reason.
    Failed(String),
}

impl TrainingResult {
    /// As these words say, which are cut if there are very many.
    pub fn input_ended(how: impl std::fmt::Display) -> Self {
        Self::InputEnded(super::reason(how))
    }

    /// For that reason, which is cut if it is very long.
    pub fn failed(reason: impl std::fmt::Display) -> Self {
        Self::Failed(super::reason(reason))
    }
}

impl Content for Finish {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        if let TrainingResult::Failed(reason) | TrainingResult::InputEnded(reason) = &self.result {
            text_within("reason", reason, REASON_BYTES_MAX)?;
        }
        no_payload(segments)
    }
}

/// Chief to worker, once all live workers have finished: what is left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// Whether this worker shall evaluate the final variables; the others may go.
    pub evaluate: bool,
    /// The step at which the training ended: every shard's version.
    pub step: GlobalStep,
}

impl Content for Finished {}
