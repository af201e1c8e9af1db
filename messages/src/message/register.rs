//! Registers a worker, which learns the job from the chief.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, no_payload};
use crate::job::JobSpec;
use crate::observe::TraceSpec;
use crate::placement::Placement;

/// Worker to chief: a request to join the job. The handshake has identified the worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Register {}

impl Content for Register {}

/// Chief to worker, after every variable has its initial value: the job to prepare.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Registered {
    /// The job.
    pub job: JobSpec,
    /// The placement of its variables.
    pub placement: Placement,
    /// The number of workers that share the examples.
    pub workers: u32,
    /// The position at which this worker continues in its input.
    #[serde(default)]
    pub resume: Resume,
    /// Whether checkpoints are saved, so that nothing is lost if the worker leaves on a signal.
    #[serde(default)]
    pub saves: bool,
    /// The steps to trace, if any.
    #[serde(default)]
    pub trace: Option<TraceSpec>,
}

/// The position at which a worker continues in its input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// The batches taken before; the random numbers of a step depend on this count.
    pub drawn: u64,
    /// The examples of its share that were read before.
    pub examples: u64,
}

impl Content for Registered {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        self.job.validate().map_err(|error| Invalid(error.to_string()))?;
        self.placement.validate(&self.job.graph.variables).map_err(|error| Invalid(error.to_string()))?;
        if self.trace.is_some_and(|trace| trace.every == 0) {
            return Err(Invalid("trace.every is 0, expected 1 or more".into()));
        }
        if self.workers == 0 {
            return Err(Invalid("workers is 0, expected at least 1".into()));
        }
        no_payload(segments)
    }
}

/// Worker to chief: everything is prepared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {}

impl Content for Ready {}

/// Chief to worker, after every worker is ready: begin to train.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Go {}

impl Content for Go {}
