//! Texts for language models, as data: which part of a text, cut into which windows.
//! Knows neither the text nor how it is made.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{EXAMPLE_ELEMENTS_MAX, InputSpecError};

/// A plain text. Tokens are bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextSpec {
    /// The file, plain or gzipped.
    pub file: PathBuf,
    /// How it is cut.
    pub windows: WindowsSpec,
}

/// A text that is made on the spot: sentences of a small language. The same text for the same seed, the same language
/// for all seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BabbleSpec {
    /// What it is drawn from.
    pub seed: u64,
    /// How long it is.
    pub bytes: u64,
    /// How it is cut.
    pub windows: WindowsSpec,
}

/// Windows of a text, each an example: `features`, `i32` of shape `[length]`, are tokens, and `labels`, of the same
/// shape, are for each of them the token that follows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowsSpec {
    /// Tokens of one example.
    pub length: u32,
    /// From the begin of one window to that of the next: 1 for a training set, `length` for a test set.
    #[serde(default = "one")]
    pub stride: u32,
    /// Where in the text the part that is read begins: 0.9 of it, for example.
    #[serde(default)]
    pub begin: f64,
    /// Where that part ends.
    #[serde(default = "whole")]
    pub end: f64,
}

fn one() -> u32 {
    1
}

fn whole() -> f64 {
    1.0
}

impl WindowsSpec {
    /// A window at every token of the part of the text from `begin` to `end`, which are fractions of it.
    pub fn every(length: u32, begin: f64, end: f64) -> Self {
        Self { length, stride: 1, begin, end }
    }

    /// Windows that do not overlap, in the part of the text from `begin` to `end`, which are fractions of it.
    pub fn apart(length: u32, begin: f64, end: f64) -> Self {
        Self { length, stride: length, begin, end }
    }

    pub(super) fn validate(&self) -> Result<(), InputSpecError> {
        if !(1..=EXAMPLE_ELEMENTS_MAX).contains(&(self.length as usize)) {
            return InputSpecError::range(
                "the windows' length",
                format!("1 to {EXAMPLE_ELEMENTS_MAX}"),
                self.length,
            );
        }
        if self.stride == 0 {
            return InputSpecError::range("the windows' stride", "at least 1", 0);
        }
        // Also false where one of them is no number.
        if !(0.0 <= self.begin && self.begin < self.end && self.end <= 1.0) {
            let got = format!("{} to {}", self.begin, self.end);
            return InputSpecError::range(
                "the part of the text",
                "from at least 0 to at most 1, and not empty",
                got,
            );
        }
        Ok(())
    }
}
