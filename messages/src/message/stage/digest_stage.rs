//! Asks a stage for the checksums of the values that it keeps.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, no_payload};

/// The maximum number of variables in a reply.
const VARIABLES_MAX: usize = 1 << 20;

/// A request from the leader to a stage: return the checksums of a set of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigestStage {
    /// The number of the set of values.
    pub values: u64,
}

impl Content for DigestStage {}

/// The reply to [`DigestStage`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageDigests {
    /// The crc32c of the bytes of each variable that the stage owns, in the order of the graph.
    pub crc32c: Vec<u32>,
}

impl Content for StageDigests {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        match self.crc32c.len() {
            0..=VARIABLES_MAX => no_payload(segments),
            count => Err(Invalid(format!("has {count} checksums, expected at most {VARIABLES_MAX}"))),
        }
    }
}
