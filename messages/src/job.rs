//! A whole job as data: what is trained, on what, how, and for how long. The job file is its JSON.
//! Where it runs is the cluster spec's matter.

use serde::{Deserialize, Serialize};

use crate::gradient::{GradientError, GradientSpec};
use crate::graph::{GraphError, GraphSpec};
use crate::id::GlobalStep;
use crate::input::{InputSpec, InputSpecError};
use crate::optimizer::{OptimizerError, OptimizerSpec, ScheduleSpec, UpdateSpec};
use crate::placement::{PartitionerError, PlacementSpec};
use crate::sync::{LeaveSpec, SyncSpec};

/// Most examples in one worker's batch.
pub const BATCH_SIZE_MAX: u32 = 1 << 20;
/// Most bytes in a job file.
pub const JOB_FILE_BYTES_MAX: u64 = 16 << 20;

/// Everything that the tasks of a job need to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    /// What is trained.
    pub graph: GraphSpec,
    /// On what.
    pub input: InputSpec,
    /// Examples in one worker's batch.
    pub batch_size: u32,
    /// How a gradient becomes an update.
    pub optimizer: OptimizerSpec,
    /// How the step size follows the global step.
    #[serde(default)]
    pub schedule: ScheduleSpec,
    /// Over so many steps the step size goes up to what the schedule says.
    #[serde(default)]
    pub warm_up: u64,
    /// So much of the value is added to its gradient.
    #[serde(default)]
    pub weight_decay: f32,
    /// How much stays of an exponential moving average of every trained variable, where one is kept: it is what is
    /// evaluated, then.
    #[serde(default)]
    pub average: Option<f32>,
    /// What a worker does with a gradient before it pushes it.
    #[serde(default)]
    pub gradient: GradientSpec,
    /// How gradients of several workers meet.
    #[serde(default)]
    pub sync: SyncSpec,
    /// Whether two runs shall leave the same bits; with `sync` only.
    #[serde(default)]
    pub deterministic: bool,
    /// What becomes of the job when a worker leaves before the last step.
    #[serde(default)]
    pub when_worker_leaves: LeaveSpec,
    /// Where variables go.
    #[serde(default)]
    pub placement: PlacementSpec,
    /// So many updates are applied, not one more.
    pub last_step: GlobalStep,
    /// What initial values and the order of examples are drawn from.
    #[serde(default)]
    pub seed: u64,
}

/// What is wrong with a job.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The text is not a job in JSON.
    #[error("not a job file: {0}")]
    Json(String),
    /// The graph cannot run.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The optimizer cannot run.
    #[error(transparent)]
    Optimizer(#[from] OptimizerError),
    /// The input cannot be written down.
    #[error(transparent)]
    Input(#[from] InputSpecError),
    /// Gradients cannot be changed so.
    #[error(transparent)]
    Gradient(#[from] GradientError),
    /// With this policy the order of arrival decides.
    #[error(
        "deterministic needs the policy sync, and the policy is {0}: which gradients meet depends on time"
    )]
    NotDeterministic(SyncSpec),
    /// The partitioner cannot split anything.
    #[error(transparent)]
    Partitioner(#[from] PartitionerError),
    /// The batch has no examples, or too many.
    #[error("batch_size must be from 1 to {BATCH_SIZE_MAX}, and is {0}")]
    BatchSize(u32),
    /// There is nothing to train.
    #[error("last_step must be at least 1, and is 0")]
    NoSteps,
}

/// What an error in a file says, which may quote the file: not as long as the file may be, and on one line.
pub fn told(error: &serde_json::Error) -> String {
    /// Letters on either side of what is left out.
    const SIDE: usize = 200;
    let text: Vec<char> = error.to_string().chars().collect();
    let plain = |letter: &char| if letter.is_control() { '\u{fffd}' } else { *letter };
    let shown = |part: &[char]| part.iter().map(plain).collect::<String>();
    match text.len() {
        length if length <= 2 * SIDE => shown(&text),
        length => format!("{} … {}", shown(&text[..SIDE]), shown(&text[length - SIDE..])),
    }
}

impl JobSpec {
    /// A job with the usual settings: batches of 64, plain gradient descent, asynchronous.
    pub fn new(graph: GraphSpec, input: InputSpec, last_step: u64) -> Self {
        Self {
            graph,
            input,
            batch_size: 64,
            optimizer: OptimizerSpec::sgd(0.1),
            schedule: ScheduleSpec::default(),
            warm_up: 0,
            weight_decay: 0.0,
            average: None,
            gradient: GradientSpec::default(),
            sync: SyncSpec::default(),
            deterministic: false,
            when_worker_leaves: LeaveSpec::default(),
            placement: PlacementSpec::default(),
            last_step: GlobalStep(last_step),
            seed: 0,
        }
    }

    /// What the ps tasks need to know of it to change a variable.
    pub fn update(&self) -> UpdateSpec {
        UpdateSpec {
            optimizer: self.optimizer.clone(),
            schedule: self.schedule,
            warm_up: self.warm_up,
            weight_decay: self.weight_decay,
            average: self.average,
        }
    }

    /// Reads a job file.
    ///
    /// # Errors
    /// Where it is no JSON, names something unknown, or cannot run.
    pub fn from_json(text: &str) -> Result<Self, JobError> {
        let job: Self = serde_json::from_str(text).map_err(|error| JobError::Json(told(&error)))?;
        job.validate()?;
        Ok(job)
    }

    /// What a job file holds.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data encodes")
    }

    /// Checks everything that can be checked before it runs.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn validate(&self) -> Result<(), JobError> {
        if !(1..=BATCH_SIZE_MAX).contains(&self.batch_size) {
            return Err(JobError::BatchSize(self.batch_size));
        }
        if self.last_step.0 == 0 {
            return Err(JobError::NoSteps);
        }
        self.update().validate()?;
        self.gradient.validate()?;
        if self.deterministic && self.sync != SyncSpec::SYNC {
            return Err(JobError::NotDeterministic(self.sync));
        }
        self.input.validate()?;
        self.placement.partitioner.validate()?;
        self.graph.validate(self.batch_size as usize)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_file_is_told_in_one_short_line() {
        let long = format!("\"\u{1b}[31m\\n{}\"", "x".repeat(1 << 20)).replace('\u{1b}', "\\u001b");
        let error = JobSpec::from_json(&long).unwrap_err().to_string();
        assert!(error.len() < 1000 && !error.chars().any(char::is_control), "{error}");
        assert!(
            error.starts_with("not a job file: ") && error.ends_with(&format!("column {}", long.len())),
            "{error}"
        );
    }
}
