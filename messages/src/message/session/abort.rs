//! Ends a task's part of a run, because another part has failed.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, RunKey, no_payload, text_within};
use crate::message::{REASON_BYTES_MAX, reason};

/// A request from the task that leads a run to another task: end your part of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abort {
    /// The run.
    pub run: RunKey,
    /// Why the run has failed.
    pub reason: String,
}

impl Abort {
    /// Makes a request. A very long reason is truncated.
    pub fn new(run: RunKey, why: impl std::fmt::Display) -> Self {
        Self { run, reason: reason(why) }
    }
}

impl Content for Abort {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        text_within("the reason", &self.reason, REASON_BYTES_MAX)?;
        no_payload(segments)
    }
}

/// The reply to [`Abort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aborted {}

impl Content for Aborted {}
