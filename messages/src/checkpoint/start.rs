//! The source of the values with which a shard starts: initializers or a checkpoint.

use serde::{Deserialize, Serialize};

use super::{CheckpointName, WorkerRecord};
use crate::id::VariableId;

/// The source of the values with which a shard starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartSpec {
    /// The variables' initializers.
    #[default]
    Initialise,
    /// The whole state in a checkpoint of the same variables: values, averages, slots, step and the records
    /// of the workers.
    Resume {
        /// The location of the store, as `Store::open` accepts it.
        store: String,
        /// The name of the checkpoint.
        checkpoint: CheckpointName,
        /// The records of this job's workers, by their index, if the number of workers or the batch size
        /// differs from that of the checkpoint. Empty if the manifest's records apply.
        workers: Vec<WorkerRecord>,
    },
    /// The values of some variables, from a checkpoint. The other variables and all slots are initialised.
    WarmStart {
        /// The location of the store, as `Store::open` accepts it.
        store: String,
        /// The name of the checkpoint.
        checkpoint: CheckpointName,
        /// The variables that take their values from the checkpoint, each once.
        variables: Vec<SourceSpec>,
    },
}

/// A variable that takes its values from a checkpoint, and the name under which the checkpoint has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceSpec {
    /// The variable of this job.
    pub variable: VariableId,
    /// The name of a variable of the same shape in the checkpoint.
    pub source: String,
}
