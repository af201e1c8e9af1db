//! What a shard's variables begin with.

use serde::{Deserialize, Serialize};

use super::{CheckpointName, WorkerRecord};
use crate::id::VariableId;

/// What a shard's variables begin with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartSpec {
    /// Their initial values.
    #[default]
    Initialise,
    /// All that a checkpoint of the same variables has: values, averages, slots, the step and the memory of pushes.
    Resume {
        /// The store, as `Store::open` takes it.
        store: String,
        /// Which of its checkpoints.
        checkpoint: CheckpointName,
        /// What is remembered of this job's workers, by their index, as there may be others than before, with other
        /// batches; none where it is what the manifest has.
        workers: Vec<WorkerRecord>,
    },
    /// The values of some variables; the rest, and the slots of all, begin as they are initialised.
    WarmStart {
        /// The store.
        store: String,
        /// Which of its checkpoints.
        checkpoint: CheckpointName,
        /// Which variables, each once.
        variables: Vec<SourceSpec>,
    },
}

/// A variable, and what it is called in the checkpoint that it takes its values from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceSpec {
    /// Of the job.
    pub variable: VariableId,
    /// In the checkpoint; of the same shape.
    pub source: String,
}
