//! The errors of a job that cannot begin with its checkpoint. Data only.

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::id::GlobalStep;
use pushpull_messages::tensor::Shape;
use pushpull_storage::StoreError;

/// A broken checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {reason}")]
pub struct BrokenCheckpoint {
    /// The checkpoint.
    pub name: CheckpointName,
    /// What is wrong with it.
    pub reason: String,
}

/// Why a job cannot begin with a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The store cannot be listed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The requested checkpoint is broken.
    #[error("{broken}; {}", match earlier {
        Some(earlier) => format!("the newest valid one is {earlier}: restore {}, or latest-valid", earlier.step),
        None => "no other one is valid".to_owned(),
    })]
    Broken {
        /// The checkpoint.
        broken: BrokenCheckpoint,
        /// The newest valid checkpoint, if there is one.
        earlier: Option<CheckpointName>,
    },
    /// There are checkpoints, and all of them are broken.
    #[error(
        "no checkpoint in {location} is valid; to begin anew, use --restore none: {}",
        broken.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    )]
    NoneWhole {
        /// The store.
        location: String,
        /// The broken checkpoints, the newest first.
        broken: Vec<BrokenCheckpoint>,
    },
    /// The store does not answer, so the state of the checkpoint is unknown.
    #[error(
        "{checkpoint} cannot be read now: {reason}; no older one is used, so start again when it can be read"
    )]
    Unreadable {
        /// The checkpoint.
        checkpoint: CheckpointName,
        /// The error of the store.
        reason: String,
    },
    /// There is no checkpoint of the requested step.
    #[error("there is no checkpoint of step {step} in {location}; {}", match there.as_slice() {
        [] => "there is none at all".to_owned(),
        there => format!("there are {}", there.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    })]
    NoSuchStep {
        /// The step.
        step: GlobalStep,
        /// The store.
        location: String,
        /// The steps that have a checkpoint, the newest first; at most as many as fit a line.
        there: Vec<GlobalStep>,
    },
    /// There is no checkpoint to take values from.
    #[error("warm start: there is no checkpoint in {0}")]
    NothingThere(String),
    /// The checkpoint has other variables than the job.
    #[error(
        "{name} does not fit the job: {difference}; to take over only what fits, begin in a new directory with --warm-start"
    )]
    Misfit {
        /// The checkpoint.
        name: CheckpointName,
        /// The first difference.
        difference: String,
    },
    /// The checkpoint is beyond the job's last step.
    #[error(
        "{name} is beyond the job's last step, which is {last_step}: train for more steps, or restore an earlier one"
    )]
    Beyond {
        /// The checkpoint.
        name: CheckpointName,
        /// The last step of the job.
        last_step: GlobalStep,
    },
    /// The checkpoint has no fitting value for a variable.
    #[error("warm start: {}", match found {
        Some(found) => format!("'{variable}' has shape {shape}, and '{source_name}' in the checkpoint {found}"),
        None => format!("'{variable}' should begin with '{source_name}', and the checkpoint has no such variable"),
    })]
    NoSource {
        /// The variable of the job.
        variable: String,
        /// The shape of the variable.
        shape: Shape,
        /// The name in the checkpoint.
        source_name: String,
        /// The shape in the checkpoint, if it has such a variable.
        found: Option<Shape>,
    },
    /// A variable that should be renamed is not in the job.
    #[error("warm start: the job has no variable '{0}' to rename")]
    UnknownVariable(String),
    /// No variable takes a value from the checkpoint.
    #[error("warm start: {}", match pattern {
        Some(pattern) => format!("'{pattern}' matches no variable of the job"),
        None => "the checkpoint has no variable of the job, by name and shape".to_owned(),
    })]
    NothingToTake {
        /// The pattern of the variables that should, if there is one.
        pattern: Option<String>,
    },
}
