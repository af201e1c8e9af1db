//! Tells a later run of the chief that a worker is already training.

use serde::{Deserialize, Serialize};

use super::Content;
use crate::input::FilesDigest;

/// A message from a worker to a chief that was started again: an earlier run of the chief has let the worker
/// begin, and the worker continues to train. Sending the message twice has no further effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejoin {
    /// The digest of the spec of the worker's job.
    pub job: u32,
    /// The digest of the worker's input files, if it reads files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<FilesDigest>,
}

impl Content for Rejoin {}

/// The reply of the chief to [`Rejoin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejoined {
    /// Whether the chief leads the job. If the chief does not lead it yet, the worker sends [`Rejoin`] again.
    pub leads: bool,
}

impl Content for Rejoined {}
