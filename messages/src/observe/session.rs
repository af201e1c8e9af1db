//! The snapshot of a server of sessions: its connections, runs, graphs and variables.

use serde::{Deserialize, Serialize};

use super::ps::ServerSnapshot;
use super::times::TimeHistogram;

/// The state of a server of sessions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionSnapshot {
    /// The state of the connections that the task has accepted.
    pub server: ServerSnapshot,
    /// The number of runs that clients have requested from this task and that have completed.
    pub completed: u64,
    /// The number of runs that clients have requested from this task and that were refused or have failed.
    pub failed: u64,
    /// The number of runs in progress that this task takes part in.
    pub running: u64,
    /// The times from a client's request to the answer.
    pub took: TimeHistogram,
    /// The number of open graphs, including those that clients have opened on other tasks.
    pub graphs: u64,
    /// The bytes that the task's variables and their slots take.
    pub variable_bytes: u64,
    /// The maximum of `variable_bytes`.
    pub variable_bytes_max: u64,
}
