//! How the chief has a shard write its part of a checkpoint, and learns what was written.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, REASON_BYTES_MAX, no_payload, text_within};
use crate::checkpoint::{CheckpointName, FileSpec, WorkerRecord};
use crate::id::Version;

/// Chief to ps: when this shard is at that version, write what it holds into that checkpoint, beside the training. A save
/// takes the place of an earlier one that has not begun. The same once more asks for the same answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Save {
    /// Which shard of the ps task.
    pub shard: u32,
    /// Where, as `Store::open` takes it.
    pub store: String,
    /// Of what.
    pub checkpoint: CheckpointName,
    /// When.
    pub at: Version,
}

impl Content for Save {}

/// Ps to chief: what became of a save.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// That.
    pub result: SaveResult,
}

/// What became of a save.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SaveResult {
    /// The file is written, and durable.
    Written {
        /// What it is.
        file: FileSpec,
        /// What the shard remembers of each worker at that version, by their index.
        workers: Vec<WorkerRecord>,
        /// How long the writing took, in milliseconds.
        took_ms: u64,
    },
    /// The shard is at this version already, which is beyond the one that was asked for.
    Past(Version),
    /// A later save took its place before it began.
    Replaced,
    /// It could not be written, for this reason.
    Failed(String),
}

impl SaveResult {
    /// For that reason, which is cut if it is very long.
    pub fn failed(reason: impl std::fmt::Display) -> Self {
        Self::Failed(super::reason(reason))
    }
}

impl Content for Saved {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        if let SaveResult::Failed(reason) = &self.result {
            text_within("reason", reason, REASON_BYTES_MAX)?;
        }
        no_payload(segments)
    }
}
