//! Tells a worker that it is a stage of another worker's replica.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, no_payload};
use crate::message::WORKERS_MAX;

/// The chief's reply to [`Register`](super::super::Register) for a worker task that leads no replica: compute
/// a stage of the replica that this worker leads, which will dial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServeStage {
    /// The index of the worker task that leads the replica.
    pub leader: u32,
    /// The number of replicas of the job. The tasks of a replica are those whose indices have the same
    /// remainder when divided by this number.
    pub replicas: u32,
}

impl Content for ServeStage {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        let Self { leader, replicas } = *self;
        if !(1..=WORKERS_MAX).contains(&replicas) || leader >= replicas {
            return Err(Invalid(format!(
                "got leader {leader} of {replicas} replicas, expected fewer than {WORKERS_MAX}, and one of them"
            )));
        }
        no_payload(segments)
    }
}
