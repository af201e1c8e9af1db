//! Removes the variables of containers.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, at_most, container_name, no_payload};

/// The maximum number of containers in one request.
const CONTAINERS_MAX: usize = 256;

/// A request to a server: remove all variables of these containers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reset {
    /// The names of the containers; empty for all containers.
    pub containers: Vec<String>,
    /// Whether to remove only the variables of the task that answers. Otherwise, the task asks all other
    /// tasks, too.
    pub own: bool,
}

impl Content for Reset {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        at_most("containers", self.containers.len(), CONTAINERS_MAX)?;
        self.containers.iter().try_for_each(|name| container_name(name))?;
        no_payload(segments)
    }
}

/// The reply to [`Reset`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResetDone {
    /// The number of variables that were removed.
    pub variables: u64,
}

impl Content for ResetDone {}
