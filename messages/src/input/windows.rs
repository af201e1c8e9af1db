//! The specs of texts for language models: the part of a text that is used, and the windows into which that
//! part is cut.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{EXAMPLE_ELEMENTS_MAX, InputSpecError};

/// The spec of a text file. Its tokens are its bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextSpec {
    /// The file, plain or packed by gzip or zstd.
    pub file: PathBuf,
    /// The windows into which the text is cut.
    pub windows: WindowsSpec,
}

/// The spec of a generated text: random sentences of a small artificial language. The same seed gives the
/// same text, and the language is the same for all seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BabbleSpec {
    /// The seed of the random sentences.
    pub seed: u64,
    /// The length of the text, in bytes.
    pub bytes: u64,
    /// The windows into which the text is cut.
    pub windows: WindowsSpec,
}

/// The windows into which a text is cut. Each window is an example with two `i32` columns of shape
/// `[length]`: `features` are the tokens of the window, and `labels` contains, for each of these tokens, the
/// next token of the text.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowsSpec {
    /// The number of tokens in one example.
    pub length: u32,
    /// The distance from the beginning of one window to the beginning of the next, in tokens. Usual values
    /// are 1 for a training set and `length` for a test set.
    #[serde(default = "one")]
    pub stride: u32,
    /// Where the used part of the text begins, as a fraction of the text's length, such as 0.9.
    #[serde(default)]
    pub begin: f64,
    /// Where the used part of the text ends, as a fraction of the text's length.
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
    /// Makes windows with a stride of 1. They lie in the part of the text from `begin` to `end`, both
    /// fractions of the text's length.
    pub fn every(length: u32, begin: f64, end: f64) -> Self {
        Self { length, stride: 1, begin, end }
    }

    /// Makes windows that touch but do not overlap. They lie in the part of the text from `begin` to `end`,
    /// both fractions of the text's length.
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
        // The comparison is also false if `begin` or `end` is NaN.
        if !(0.0 <= self.begin && self.begin < self.end && self.end <= 1.0) {
            let got = format!("{} to {}", self.begin, self.end);
            return InputSpecError::range("the part of the text", "within 0 to 1 and not empty", got);
        }
        Ok(())
    }
}
