//! What can be wrong with an input before anything is read.
//! Knows no file's content.

use std::path::PathBuf;

use super::NAME_BYTES_MAX;

/// Why an input cannot travel or cannot be read by anyone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputSpecError {
    /// A path that no message can carry.
    #[error("{} is not UTF-8, and a job's paths must be", .0.display())]
    NotUtf8(PathBuf),
    /// A name that cannot be used.
    #[error(
        "input: the name of {what} must be of 1 to {NAME_BYTES_MAX} bytes without control characters, and is '{got}'"
    )]
    Name {
        /// What bears it.
        what: String,
        /// The name's begin, its control characters escaped.
        got: String,
    },
    /// Something is out of its range.
    #[error("input: {what} must be {expected}, and is {got}")]
    Range {
        /// What.
        what: String,
        /// What it may be.
        expected: String,
        /// What it is.
        got: String,
    },
}

impl InputSpecError {
    /// Checks a name; `what` says what bears it.
    pub(super) fn name(what: impl FnOnce() -> String, name: &str) -> Result<(), Self> {
        if (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.chars().any(char::is_control) {
            return Ok(());
        }
        // An error stays one line of a bearable length.
        let got = name.chars().take(64).flat_map(char::escape_debug).collect();
        Err(Self::Name { what: what(), got })
    }

    /// Something that must be in a range, and is not.
    pub(super) fn range(
        what: impl Into<String>,
        expected: impl Into<String>,
        got: impl ToString,
    ) -> Result<(), Self> {
        Err(Self::Range { what: what.into(), expected: expected.into(), got: got.to_string() })
    }
}
