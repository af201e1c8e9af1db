//! How gradients of several workers meet, as data. What it means is carried out by the shards.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A synchronisation policy: one value in the job, one protocol for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SyncSpec {
    /// Each push is applied as it comes.
    #[default]
    Async,
}

impl fmt::Display for SyncSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Async => f.write_str("async"),
        }
    }
}
