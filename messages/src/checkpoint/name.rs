//! The names of a checkpoint and of its files. Values of [`CheckpointName`] are ordered by step. Sorting the
//! names as texts gives another order, because the step has no leading zeros.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::{GlobalStep, Incarnation, ShardId};

/// The name of a checkpoint's folder, such as `step-1200-00064432fa1b2c3d`. It consists of the checkpoint's
/// step and the chief's incarnation. If a restarted chief saves the same step again, the name differs, so a
/// committed checkpoint is never overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CheckpointName {
    /// The step of the checkpoint: the number of updates that it contains.
    pub step: GlobalStep,
    /// The incarnation of the chief that made the checkpoint.
    pub life: Incarnation,
}

/// The error for a text that is not the name of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not the name of a checkpoint, expected step-N-INCARNATION, where INCARNATION has 16 hexadecimal digits"
)]
pub struct NameError(String);

impl CheckpointName {
    /// Returns the path of the checkpoint's manifest within the store.
    pub fn manifest(&self) -> String {
        self.file("manifest.json")
    }

    /// Returns the path, within the store, of the file `name` in the checkpoint's folder.
    pub fn file(&self, name: &str) -> String {
        format!("{self}/{name}")
    }

    /// Returns the name of a shard's file in the checkpoint's folder.
    pub fn shard_file(shard: ShardId) -> String {
        format!("ps-{}-shard-{}.safetensors", shard.ps, shard.shard)
    }
}

impl fmt::Display for CheckpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step-{}-{:016x}", self.step, self.life.0)
    }
}

impl FromStr for CheckpointName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let parsed =
            text.strip_prefix("step-").and_then(|rest| rest.split_once('-')).and_then(|(step, life)| {
                let name = Self {
                    step: GlobalStep(step.parse().ok()?),
                    life: Incarnation(u64::from_str_radix(life, 16).ok()?),
                };
                // Only the canonical spelling is valid. The incarnation must be below `u64::MAX`, so that
                // `Incarnation::next` cannot overflow.
                (name.to_string() == text && name.life.0 < u64::MAX).then_some(name)
            });
        parsed.ok_or_else(|| NameError(text.chars().take(64).collect()))
    }
}

impl TryFrom<String> for CheckpointName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<CheckpointName> for String {
    fn from(name: CheckpointName) -> Self {
        name.to_string()
    }
}
