//! What a client of servers may do.

use std::fmt;
use std::str::FromStr;

/// What a client of servers may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientRole {
    /// Everything that clients can do: run graphs, change variables, and remove them.
    Run,
    /// Ask for descriptions, and run what changes and creates no variable.
    Read,
}

/// The error for a text that is not the name of a role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the role of a client is not valid: expected run or read")]
pub struct UnknownClientRole;

impl ClientRole {
    /// All roles.
    pub const ALL: [Self; 2] = [Self::Run, Self::Read];

    /// Returns the name of the role.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Read => "read",
        }
    }

    /// Returns whether the client may change, create and remove variables.
    pub const fn may_change(self) -> bool {
        matches!(self, Self::Run)
    }
}

impl fmt::Display for ClientRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for ClientRole {
    type Err = UnknownClientRole;

    fn from_str(text: &str) -> Result<Self, UnknownClientRole> {
        Self::ALL.into_iter().find(|role| role.as_str() == text).ok_or(UnknownClientRole)
    }
}
