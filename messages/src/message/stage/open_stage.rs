//! Opens a stage for one incarnation of a leader.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, no_payload};
use crate::job::JobSpec;
use crate::placement::Placement;

/// A request from the leader of a replica to a stage: prepare this job, and connect to the shards of the
/// variables that the stage owns. The stage acts in the name of the leader's incarnation that sends the
/// request. It forgets what it has opened for an earlier incarnation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenStage {
    /// The description of the job.
    pub job: JobSpec,
    /// The placement of the job's variables.
    pub placement: Placement,
    /// The number of the stage, from 1; the leader is stage 0.
    pub stage: u32,
}

impl Content for OpenStage {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        self.job.validate().map_err(|error| Invalid(error.to_string()))?;
        self.placement.validate(&self.job.graph.variables).map_err(|error| Invalid(error.to_string()))?;
        let stages = self.job.graph.stages().count();
        if !(1..stages).contains(&self.stage) {
            let stage = self.stage;
            return Err(Invalid(format!("the stage is {stage}, expected 1 or more, and less than {stages}")));
        }
        no_payload(segments)
    }
}

/// The reply to [`OpenStage`]: the stage is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageOpened {}

impl Content for StageOpened {}
