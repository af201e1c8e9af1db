//! The names of jobs that a user's description of a cluster may contain: a task that trains knows only the
//! roles of training.

use super::error::ClusterError;
use super::quote::quote;
use crate::id::JobName;

/// The names that are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KnownJobs {
    /// Only chief, ps, worker and evaluator.
    Roles,
    /// Every valid name.
    All,
}

impl KnownJobs {
    /// Parses a name that was found in the flag or key `key`.
    ///
    /// # Errors
    /// If the name is not accepted.
    pub fn parse(self, key: &'static str, name: &str) -> Result<JobName, ClusterError> {
        match self {
            Self::Roles => {
                JobName::role(name).map_err(|_| ClusterError::UnknownJob { key, name: quote(name) })
            }
            Self::All => name.parse().map_err(|error| ClusterError::JobName { key, error }),
        }
    }
}
