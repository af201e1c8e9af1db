//! Saves a shard's part of a checkpoint.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, REASON_BYTES_MAX, no_payload, text_within};
use crate::checkpoint::{CheckpointName, FileSpec, WorkerRecord};
use crate::id::Version;

/// A request from the chief to a ps task: save the shard's state at version `at` into a checkpoint, while
/// training continues. A new save replaces an earlier save that has not begun. A repeated request does not
/// start a second save; it waits for the result of the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Save {
    /// The shard's index in the ps task.
    pub shard: u32,
    /// The location of the checkpoint store, in the form that `Store::open` accepts.
    pub store: String,
    /// The name of the checkpoint.
    pub checkpoint: CheckpointName,
    /// The version of the shard's state to save.
    pub at: Version,
}

impl Content for Save {}

/// The reply of a ps task to [`Save`], sent when the save has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// The result of the save.
    pub result: SaveResult,
}

/// The result of a save.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SaveResult {
    /// The file has been written and is durable.
    Written {
        /// The description of the file.
        file: FileSpec,
        /// The shard's records of the workers at this version, in the order of the workers' indices.
        workers: Vec<WorkerRecord>,
        /// The time taken to write, in milliseconds.
        took_ms: u64,
    },
    /// Nothing was saved, because the shard has already passed the requested version. The value is the
    /// shard's current version.
    Past(Version),
    /// This save had not begun when a later save replaced it.
    Replaced,
    /// The file could not be written, for this reason.
    Failed(String),
}

impl SaveResult {
    /// Makes the result for a failure. A very long reason is truncated.
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
