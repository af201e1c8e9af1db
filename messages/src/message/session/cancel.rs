//! Ends a run on the client's request.

use serde::{Deserialize, Serialize};

use super::Content;

/// A request from a client to a server: end this run. The run is then refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancel {
    /// The number of the run among the client's runs.
    pub number: u64,
}

impl Content for Cancel {}

/// The reply to [`Cancel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancelled {
    /// Whether the run was in progress.
    pub running: bool,
}

impl Content for Cancelled {}
