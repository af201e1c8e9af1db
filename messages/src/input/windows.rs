//! Texts for language models as data: which part of a text is cut into which windows.
//! Knows neither the text nor how it is generated.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{EXAMPLE_ELEMENTS_MAX, InputSpecError};

/// A text file whose tokens are its bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextSpec {
    /// The file, plain or gzipped.
    pub file: PathBuf,
    /// The windows into which the text is cut.
    pub windows: WindowsSpec,
}

/// A generated text: sentences of a small language. The same seed gives the same text; the language is the
/// same for all seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BabbleSpec {
    /// The seed.
    pub seed: u64,
    /// The length of the text.
    pub bytes: u64,
    /// The windows into which the text is cut.
    pub windows: WindowsSpec,
}

/// The windows of a text, each an example: `features`, `i32` of shape `[length]`, are its tokens, and
/// `labels`, of the same shape, are the tokens that follow each of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowsSpec {
    /// The number of tokens in one example.
    pub length: u32,
    /// The distance from one window to the next: 1 for a training set, `length` for a test set.
    #[serde(default = "one")]
    pub stride: u32,
    /// The beginning of the part that is read, as a fraction of the text, such as 0.9.
    #[serde(default)]
    pub begin: f64,
    /// The end of the part that is read, as a fraction of the text.
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
    /// Makes windows that begin at every token, in the part of the text from `begin` to `end`, which are
    /// fractions.
    pub fn every(length: u32, begin: f64, end: f64) -> Self {
        Self { length, stride: 1, begin, end }
    }

    /// Makes windows that do not overlap, in the part of the text from `begin` to `end`, which are fractions.
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
        // Also false if one of them is NaN.
        if !(0.0 <= self.begin && self.begin < self.end && self.end <= 1.0) {
            let got = format!("{} to {}", self.begin, self.end);
            return InputSpecError::range("the part of the text", "within 0 to 1 and not empty", got);
        }
        Ok(())
    }
}
