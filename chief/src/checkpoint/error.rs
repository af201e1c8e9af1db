//! Why a job cannot begin with the checkpoint that it was told to. Words only.

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::id::GlobalStep;
use pushpull_messages::tensor::Shape;
use pushpull_storage::StoreError;

/// A checkpoint that is not whole, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {reason}")]
pub struct BrokenCheckpoint {
    /// Which one.
    pub name: CheckpointName,
    /// What is wrong.
    pub reason: String,
}

/// Why a job cannot begin with a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The place cannot be looked at.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The one that was asked for is not whole.
    #[error("{broken}; {}", match earlier {
        Some(earlier) => format!("the newest that is whole is {earlier}: restore {}, or latest-valid", earlier.step),
        None => "no other one is whole".to_owned(),
    })]
    Broken {
        /// That one.
        broken: BrokenCheckpoint,
        /// The newest that is whole.
        earlier: Option<CheckpointName>,
    },
    /// There are some, and none is whole.
    #[error(
        "no checkpoint in {location} is whole, and the job does not begin anew unless it is told to (--restore none): {}",
        broken.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    )]
    NoneWhole {
        /// Where.
        location: String,
        /// What is wrong with each, the newest first.
        broken: Vec<BrokenCheckpoint>,
    },
    /// The store could not say.
    #[error(
        "{checkpoint} cannot be read now: {reason}; nothing older is taken for it, so start again when it can be read"
    )]
    Unreadable {
        /// Which one.
        checkpoint: CheckpointName,
        /// What the store says.
        reason: String,
    },
    /// There is none of that step.
    #[error("there is no checkpoint of step {step} in {location}; {}", match there.as_slice() {
        [] => "there is none at all".to_owned(),
        there => format!("there are {}", there.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    })]
    NoSuchStep {
        /// Which one.
        step: GlobalStep,
        /// Where.
        location: String,
        /// The steps that are there, the newest first; at most as many as fit a line.
        there: Vec<GlobalStep>,
    },
    /// There is none to take values from.
    #[error("warm start: there is no checkpoint in {0}")]
    NothingThere(String),
    /// It is of other variables.
    #[error(
        "{name} does not fit the job: {difference}; to take over only what fits, begin in a new directory with --warm-start"
    )]
    Misfit {
        /// Which one.
        name: CheckpointName,
        /// The first difference.
        difference: String,
    },
    /// It is beyond the job's end.
    #[error(
        "{name} is beyond the job's last step, which is {last_step}: train for more steps, or restore an earlier one"
    )]
    Beyond {
        /// Which one.
        name: CheckpointName,
        /// The job's.
        last_step: GlobalStep,
    },
    /// A variable has nothing to begin with.
    #[error("warm start: {}", match found {
        Some(found) => format!("'{variable}' has shape {shape}, and '{source_name}' in the checkpoint {found}"),
        None => format!("'{variable}' shall begin with '{source_name}', and the checkpoint has no such variable"),
    })]
    NoSource {
        /// Of the job.
        variable: String,
        /// Its shape.
        shape: Shape,
        /// In the checkpoint.
        source_name: String,
        /// The shape there.
        found: Option<Shape>,
    },
    /// A variable that is to be renamed is none of the job's.
    #[error("warm start: the job has no variable '{0}', and it is given another name")]
    UnknownVariable(String),
    /// No variable takes anything.
    #[error("warm start: {}", match pattern {
        Some(pattern) => format!("'{pattern}' matches no variable of the job"),
        None => "the checkpoint has no variable of the job, by name and shape".to_owned(),
    })]
    NothingToTake {
        /// Which ones should.
        pattern: Option<String>,
    },
}
