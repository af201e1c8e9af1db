//! The errors of a job that cannot start from a checkpoint. Data only.

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::id::GlobalStep;
use pushpull_messages::tensor::Shape;
use pushpull_storage::StoreError;

/// A broken checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {reason}")]
pub struct BrokenCheckpoint {
    /// The name of the checkpoint.
    pub name: CheckpointName,
    /// The reason why the checkpoint is broken.
    pub reason: String,
}

/// The reason why a job cannot start from a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The checkpoints in the store cannot be listed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The requested checkpoint is broken.
    #[error("{broken}; {}", match earlier {
        Some(earlier) => format!("the newest valid checkpoint is {earlier}: request step {} or latest-valid", earlier.step),
        None => "no other checkpoint is valid".to_owned(),
    })]
    Broken {
        /// The requested checkpoint, and the reason why it is broken.
        broken: BrokenCheckpoint,
        /// The newest valid checkpoint, if there is one.
        earlier: Option<CheckpointName>,
    },
    /// The store has checkpoints, and all of them are broken.
    #[error(
        "no checkpoint in {location} is valid: {}; use --restore none to train from the start",
        broken.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    )]
    NoneWhole {
        /// The location of the store.
        location: String,
        /// The broken checkpoints, the newest first.
        broken: Vec<BrokenCheckpoint>,
    },
    /// No checkpoint in the memory of the ps tasks is whole, and the job has no others.
    #[error(
        "the job's variables are lost: no checkpoint in the memory of the ps tasks is whole, because more than one of them was lost{}; start the job again, with a --checkpoint-dir to survive this",
        broken.iter().map(|broken| format!(" ({broken})")).collect::<String>()
    )]
    MemoryLost {
        /// The broken checkpoints, the newest first.
        broken: Vec<BrokenCheckpoint>,
    },
    /// The store does not respond, so the state of the checkpoint is unknown.
    #[error(
        "{checkpoint} cannot be read: {reason}; using an older checkpoint would lose steps, so start the job again when the store responds"
    )]
    Unreadable {
        /// The checkpoint that could not be examined.
        checkpoint: CheckpointName,
        /// The error of the store.
        reason: String,
    },
    /// The requested step has no checkpoint.
    #[error("no checkpoint of step {step} in {location}, {}", match there.as_slice() {
        [] => "which has no checkpoints".to_owned(),
        there => format!("which has checkpoints of steps {}", there.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    })]
    NoSuchStep {
        /// The requested step.
        step: GlobalStep,
        /// The location of the store.
        location: String,
        /// The steps that have a checkpoint, the newest first, limited to the 20 newest so that the error
        /// fits on a line.
        there: Vec<GlobalStep>,
    },
    /// The store that a warm start names has no checkpoint to take values from.
    #[error("warm start: there is no checkpoint in {0}; name a store that has one")]
    NothingThere(String),
    /// The variables of the checkpoint differ from those of the job.
    #[error(
        "{name} does not fit the job: {difference}; to take over only matching variables, use a new --checkpoint-dir and --warm-start"
    )]
    Misfit {
        /// The name of the checkpoint.
        name: CheckpointName,
        /// The first difference between the variables.
        difference: String,
    },
    /// The step of the checkpoint is after the job's last step.
    #[error(
        "{name} is beyond the job's last step, which is {last_step}: train for more steps, or restore an earlier checkpoint"
    )]
    Beyond {
        /// The name of the checkpoint.
        name: CheckpointName,
        /// The last step of the job.
        last_step: GlobalStep,
    },
    /// The checkpoint has no value for a variable, or a value of a different shape.
    #[error("warm start: {}", match found {
        Some(found) => format!("'{variable}' has shape {shape}, but '{source_name}' in the checkpoint has shape {found}"),
        None => format!("'{variable}' should take the value of '{source_name}', but the checkpoint has no such variable"),
    })]
    NoSource {
        /// The name of the variable in the job.
        variable: String,
        /// The shape of the variable in the job.
        shape: Shape,
        /// The name of the variable in the checkpoint.
        source_name: String,
        /// The shape of the variable in the checkpoint; `None` if the checkpoint has no such variable.
        found: Option<Shape>,
    },
    /// A variable that the warm start should rename is not in the job.
    #[error("warm start: the job has no variable '{0}' to rename")]
    UnknownVariable(String),
    /// No variable takes a value from the checkpoint.
    #[error("warm start: {}", match pattern {
        Some(pattern) => format!("'{pattern}' matches no variable of the job"),
        None => "no variable of the checkpoint has the name and shape of a variable of the job".to_owned(),
    })]
    NothingToTake {
        /// The pattern that selects the variables of the job, if one was set.
        pattern: Option<String>,
    },
}
