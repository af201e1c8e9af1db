//! How a worker joins the job, and is told what the job is.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, no_payload};
use crate::job::JobSpec;
use crate::observe::TraceSpec;
use crate::placement::Placement;

/// Worker to chief: here I am. Who it is, the handshake has said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Register {}

impl Content for Register {}

/// Chief to worker, once every variable has its initial value: what to prepare for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Registered {
    /// What to train.
    pub job: JobSpec,
    /// Where its variables live.
    pub placement: Placement,
    /// How many workers share the examples.
    pub workers: u32,
    /// Where this worker goes on in its input.
    #[serde(default)]
    pub resume: Resume,
    /// Whether checkpoints are made: to leave when a signal says so is then no loss.
    #[serde(default)]
    pub saves: bool,
    /// Which steps are traced, if any.
    #[serde(default)]
    pub trace: Option<TraceSpec>,
}

/// Where a worker goes on in its input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// Batches that have been taken before; what is random in a step is drawn by their number.
    pub drawn: u64,
    /// Examples of its share that have been read before.
    pub examples: u64,
}

impl Content for Registered {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        self.job.validate().map_err(|error| Invalid(error.to_string()))?;
        self.placement.validate(&self.job.graph.variables).map_err(|error| Invalid(error.to_string()))?;
        if self.trace.is_some_and(|trace| trace.every == 0) {
            return Err(Invalid("every 0th step cannot be traced: expected 1 or more".into()));
        }
        if self.workers == 0 {
            return Err(Invalid("a job has at least one worker".into()));
        }
        no_payload(segments)
    }
}

/// Worker to chief: everything is prepared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {}

impl Content for Ready {}

/// Chief to worker, once every worker is ready: begin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Go {}

impl Content for Go {}
