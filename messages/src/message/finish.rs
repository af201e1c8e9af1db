//! The end of a worker's training.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, REASON_BYTES_MAX, no_payload, text_within};
use crate::id::{GlobalStep, LocalStep};

/// A message from a worker to the chief: the worker has ended its training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finish {
    /// The way in which the worker's training ended.
    pub result: TrainingResult,
    /// The number of steps that the worker has taken.
    pub local_step: LocalStep,
    /// The mean loss over the worker's last steps; NaN if there were none.
    pub loss: f32,
    /// The number of steps whose gradients were dropped because they were not finite.
    #[serde(default)]
    pub skipped: u64,
}

/// The result of a worker's training.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainingResult {
    /// Every shard has reached the last step.
    Completed,
    /// The worker's input has ended before the last step. The value is the text of the input's error. The
    /// worker waits for the other workers, whose input may be longer.
    InputEnded(String),
    /// The worker was told, by a signal or by the chief, to leave before the last step.
    Interrupted,
    /// The worker leaves without having been told to, because it has lost a ps task, or because its input or
    /// a device hangs. The value is the reason. The other workers may continue.
    GaveUp(String),
    /// The worker cannot continue, for this reason.
    Failed(String),
}

impl TrainingResult {
    /// Makes the result for an input that has ended. A very long error is truncated.
    pub fn input_ended(how: impl std::fmt::Display) -> Self {
        Self::InputEnded(super::reason(how))
    }

    /// Makes the result for a worker that leaves without having been told to. A very long reason is
    /// truncated.
    pub fn gave_up(reason: impl std::fmt::Display) -> Self {
        Self::GaveUp(super::reason(reason))
    }

    /// Makes the result for a failure. A very long reason is truncated.
    pub fn failed(reason: impl std::fmt::Display) -> Self {
        Self::Failed(super::reason(reason))
    }
}

impl Content for Finish {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        use TrainingResult::{Failed, GaveUp, InputEnded};
        if let Failed(reason) | InputEnded(reason) | GaveUp(reason) = &self.result {
            text_within("the reason", reason, REASON_BYTES_MAX)?;
        }
        no_payload(segments)
    }
}

/// The chief's reply to [`Finish`], sent after all remaining workers have finished. It says whether the
/// worker must evaluate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// Whether this worker must evaluate the final variables. It is true for one worker; the other workers
    /// end.
    pub evaluate: bool,
    /// The step at which the training ended, which is the version of every shard; 0 if `evaluate` is false.
    pub step: GlobalStep,
}

impl Content for Finished {}
