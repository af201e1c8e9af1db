//! Registers a worker with the chief, which replies with the job.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, Share, no_payload};
use crate::id::Incarnation;
use crate::input::FilesDigest;
use crate::job::JobSpec;
use crate::observe::TraceSpec;
use crate::placement::Placement;

/// A request from a worker to the chief to join the job. The handshake has identified the worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Register {
    /// The incarnation with which the same process registered before; `None` if this is the first
    /// registration of the process. The earlier incarnation has ended, even if its connection seems to be
    /// open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Incarnation>,
}

impl Content for Register {}

/// The chief's reply to [`Register`]: the job that the worker must prepare. The chief sends the reply after
/// every variable has its initial value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Registered {
    /// The description of the job.
    pub job: JobSpec,
    /// The placement of the job's variables.
    pub placement: Placement,
    /// The number of workers, including those that may still join. The examples are divided among them,
    /// unless `share` is given.
    pub workers: u32,
    /// The worker's share of the examples in a job that workers may join and leave; `None` in any other job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<Share>,
    /// The position in the worker's input at which training continues.
    #[serde(default)]
    pub resume: Resume,
    /// Whether the job saves checkpoints. A job with checkpoints loses no progress when the worker leaves
    /// because of a signal.
    #[serde(default)]
    pub saves: bool,
    /// Whether the job keeps checkpoints in the memory of the ps tasks. It then rolls back if a ps task loses
    /// its variables, although it may save nothing for a later run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub saves_in_memory: bool,
    /// The interval, in a worker's steps, at which the worker plots the summaries of the graph; `None` if
    /// the job writes no summaries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary_every: Option<u64>,
    /// Which steps to trace, if any.
    #[serde(default)]
    pub trace: Option<TraceSpec>,
    /// Whether the training has begun before, so that other workers may have left for good.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub begun: bool,
}

/// The position in a worker's input at which training continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// The number of batches that the worker has taken from its input so far. The random numbers of a step
    /// depend on this number.
    pub drawn: u64,
    /// The number of examples that the worker has read so far from its part of the training set.
    pub examples: u64,
    /// A description of the files from which the worker has read so far; `None` if they are unknown or if
    /// the number of workers has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<FilesDigest>,
}

impl Content for Registered {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        self.job.validate().map_err(|error| Invalid(error.to_string()))?;
        self.placement.validate(&self.job.graph.variables).map_err(|error| Invalid(error.to_string()))?;
        if self.trace.is_some_and(|trace| trace.every == 0) {
            return Err(Invalid("trace.every is 0, expected 1 or more".into()));
        }
        self.share.as_ref().map_or(Ok(()), Share::validate)?;
        if self.summary_every == Some(0) {
            return Err(Invalid("summary_every is 0, expected 1 or more".into()));
        }
        if self.workers == 0 {
            return Err(Invalid("workers is 0, expected at least 1".into()));
        }
        no_payload(segments)
    }
}

/// A request from a worker to the chief: the worker has prepared everything and is ready to train.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// A description of the files that the worker reads; `None` if it reads no files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<FilesDigest>,
}

impl Content for Ready {}

/// The chief's reply to [`Ready`], sent when every worker is ready: begin to train.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Go {}

impl Content for Go {}
