//! The error for a setting outside its range. All kinds of configuration use this error.

use std::fmt;

/// The error for a setting outside its range, with the value that was found and the values that are allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} must be {expected}, but is {got}")]
pub struct OutOfRange {
    /// The setting's name, such as `retry.redial_for`.
    pub key: &'static str,
    /// The allowed values, such as `at most 3600s`.
    pub expected: String,
    /// The value that was found.
    pub got: String,
}

impl OutOfRange {
    /// Returns the error for `key`; `expected` completes the sentence "`key` must be …".
    pub fn new(key: &'static str, expected: impl fmt::Display, got: impl fmt::Display) -> Self {
        Self { key, expected: expected.to_string(), got: got.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_its_range_and_its_value_are_named() {
        let error = OutOfRange::new("retry.connections_max", "at least 1", 0);
        assert_eq!(error.to_string(), "retry.connections_max must be at least 1, but is 0");
    }
}
