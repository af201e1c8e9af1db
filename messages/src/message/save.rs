//! Saves a shard's part of a checkpoint.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, REASON_BYTES_MAX, no_payload, text_within};
use crate::checkpoint::{CheckpointName, FileSpec, WorkerRecord};
use crate::id::Version;

/// Chief to ps: save the shard's state at a version into a checkpoint, while the training continues. A save
/// replaces an earlier one that has not begun. A repetition requests the same reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Save {
    /// The shard's index in the ps task.
    pub shard: u32,
    /// The location of the store, as `Store::open` accepts it.
    pub store: String,
    /// The checkpoint.
    pub checkpoint: CheckpointName,
    /// The version to save.
    pub at: Version,
}

impl Content for Save {}

/// Ps to chief: the result of a save.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// The result.
    pub result: SaveResult,
}

/// The result of a save.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SaveResult {
    /// The file is written and durable.
    Written {
        /// The file.
        file: FileSpec,
        /// The shard's records of the workers at this version, by their index.
        workers: Vec<WorkerRecord>,
        /// The time taken to write, in milliseconds.
        took_ms: u64,
    },
    /// The shard is already at this version, beyond the requested one.
    Past(Version),
    /// A later save replaced this one before it began.
    Replaced,
    /// The file could not be written, for this reason.
    Failed(String),
}

impl SaveResult {
    /// Makes the result of a failure; a very long reason is cut.
    pub fn failed(reason: impl std::fmt::Display) -> Self {
        Self::Failed(super::reason(reason))
    }
}

impl Content for Saved {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        if let SaveResult::Failed(reason) = &self.result {
            text_within("the reason", reason, REASON_BYTES_MAX)?;
        }
        no_payload(segments)
    }
}
