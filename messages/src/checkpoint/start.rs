//! The start of a shard: the source of its variables' values.

use serde::{Deserialize, Serialize};

use super::{CheckpointName, WorkerRecord};
use crate::id::VariableId;

/// The source of the values with which a shard's variables begin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartSpec {
    /// The initializers.
    #[default]
    Initialise,
    /// The whole state of a checkpoint of the same variables: values, averages, slots, step and records of
    /// workers.
    Resume {
        /// The location of the store, as `Store::open` accepts it.
        store: String,
        /// The checkpoint.
        checkpoint: CheckpointName,
        /// The records of this job's workers, by their index, if they differ from the manifest's because the
        /// number of workers or their batches have changed; else empty.
        workers: Vec<WorkerRecord>,
    },
    /// The values of some variables in a checkpoint; the other variables and all slots are initialised.
    WarmStart {
        /// The location of the store, as `Store::open` accepts it.
        store: String,
        /// The checkpoint.
        checkpoint: CheckpointName,
        /// The variables, each once.
        variables: Vec<SourceSpec>,
    },
}

/// A variable and its name in the checkpoint from which it takes its values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceSpec {
    /// The job's variable.
    pub variable: VariableId,
    /// The name of a variable of the same shape in the checkpoint.
    pub source: String,
}
