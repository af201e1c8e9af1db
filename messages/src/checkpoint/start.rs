//! The source of a shard's initial values: initializers or a checkpoint.

use serde::{Deserialize, Serialize};

use super::{CheckpointName, WorkerRecord};
use crate::id::VariableId;

/// The source of a shard's initial values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartSpec {
    /// The variables' initializers.
    #[default]
    Initialise,
    /// The whole state (values, averages, slots, step and the records of the workers) from a checkpoint that
    /// has the same variables.
    Resume {
        /// The location of the checkpoint store, in the form that `Store::open` accepts.
        store: String,
        /// The name of the checkpoint.
        checkpoint: CheckpointName,
        /// The records of this job's workers, ordered by worker index. The list is filled if the number of
        /// workers or the batch size differs from that of the job that saved the checkpoint. Otherwise, the
        /// list is empty, and the shard uses the records in the checkpoint's manifest.
        workers: Vec<WorkerRecord>,
    },
    /// The values of some variables, from a checkpoint. The other variables and all slots are initialised.
    WarmStart {
        /// The location of the checkpoint store, in the form that `Store::open` accepts.
        store: String,
        /// The name of the checkpoint.
        checkpoint: CheckpointName,
        /// The variables that take their values from the checkpoint, each listed once.
        variables: Vec<SourceSpec>,
    },
}

/// A variable of this job that takes its values from a variable of the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceSpec {
    /// The variable of this job.
    pub variable: VariableId,
    /// The name of the checkpoint's variable, which must have the same shape.
    pub source: String,
}
