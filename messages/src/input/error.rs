//! The errors of an input spec, which are found before any file is read.

use std::path::PathBuf;

use super::NAME_BYTES_MAX;
use crate::excerpt::excerpt;

/// The largest number of characters of a part of an error.
const PART_CHARS_MAX: usize = 400;

/// An error in an input spec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputSpecError {
    /// A path is not valid UTF-8, so messages cannot carry it.
    #[error("path '{}' is not valid UTF-8, expected UTF-8 for every path in a job: rename the file", .0.display())]
    NotUtf8(PathBuf),
    /// A name is empty, too long, or has control characters.
    #[error(
        "input: the name of {what} must have 1 to {NAME_BYTES_MAX} bytes without control characters, but is '{got}'"
    )]
    Name {
        /// A description of the item that has the name, such as `column 0`.
        what: String,
        /// The beginning of the name found, with control characters escaped.
        got: String,
    },
    /// A setting is out of range.
    #[error("input: {what} must be {expected}, but is {got}")]
    Range {
        /// The name of the setting.
        what: String,
        /// The allowed values.
        expected: String,
        /// The value found.
        got: String,
    },
}

impl InputSpecError {
    /// Checks the length and the characters of a name. `what` returns a description of the item that has the
    /// name, for the error.
    pub(super) fn name(what: impl FnOnce() -> String, name: &str) -> Result<(), Self> {
        if (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.chars().any(char::is_control) {
            return Ok(());
        }
        Err(Self::Name { what: shown(&what()), got: excerpt(name, 64) })
    }

    /// Returns the error for a setting that is out of range.
    pub(super) fn range(
        what: impl Into<String>,
        expected: impl Into<String>,
        got: impl ToString,
    ) -> Result<(), Self> {
        Err(Self::Range {
            what: shown(&what.into()),
            expected: expected.into(),
            got: shown(&got.to_string()),
        })
    }
}

/// Returns a part of an error, which may quote names and words of a job file.
fn shown(text: &str) -> String {
    excerpt(text, PART_CHARS_MAX)
}
