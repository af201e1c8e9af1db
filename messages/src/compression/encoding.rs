//! The encodings by name. An encoding has the same text on a command line and in a job file: `fp16`, `bf16`,
//! `int8` or `top-k:0.01`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The fraction of `top-k` from which on its pairs take no fewer bytes than all numbers.
const FRACTION_END: f64 = 0.5;

/// An encoding of the numbers of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum EncodingSpec {
    /// IEEE 754 binary16: half of the bytes.
    Fp16,
    /// The upper halves of the `f32`: half of the bytes.
    Bf16,
    /// One byte for each number, and a scale for each block of 128: 26% of the bytes.
    Int8,
    /// Only the numbers of the largest magnitudes, with their indices. For gradients only: a worker keeps the
    /// others and adds them to its next gradient.
    TopK {
        /// The fraction of the numbers that are sent; greater than 0 and less than 0.5. The bytes are twice
        /// this fraction of all.
        fraction: f64,
    },
}

impl EncodingSpec {
    /// Returns whether every number is sent, if only roughly.
    pub const fn is_dense(self) -> bool {
        !matches!(self, Self::TopK { .. })
    }

    /// Returns whether the fraction of `top-k` is in range.
    pub(super) fn is_valid(self) -> bool {
        match self {
            Self::TopK { fraction } => fraction > 0.0 && fraction < FRACTION_END,
            Self::Fp16 | Self::Bf16 | Self::Int8 => true,
        }
    }
}

impl fmt::Display for EncodingSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fp16 => f.write_str("fp16"),
            Self::Bf16 => f.write_str("bf16"),
            Self::Int8 => f.write_str("int8"),
            Self::TopK { fraction } => write!(f, "top-k:{fraction}"),
        }
    }
}

/// The error for a text that is not an encoding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown encoding '{0}', expected fp16, bf16, int8, or top-k:FRACTION with a fraction greater than 0 and less than 0.5"
)]
pub struct UnknownEncoding(pub String);

impl FromStr for EncodingSpec {
    type Err = UnknownEncoding;

    fn from_str(text: &str) -> Result<Self, UnknownEncoding> {
        let found = match text {
            "fp16" => Some(Self::Fp16),
            "bf16" => Some(Self::Bf16),
            "int8" => Some(Self::Int8),
            other => other
                .strip_prefix("top-k:")
                .and_then(|fraction| Some(Self::TopK { fraction: fraction.parse().ok()? })),
        };
        // A text from elsewhere may be long.
        let unknown = || UnknownEncoding(text.chars().take(64).collect());
        found.filter(|found| found.is_valid()).ok_or_else(unknown)
    }
}

impl From<EncodingSpec> for String {
    fn from(encoding: EncodingSpec) -> Self {
        encoding.to_string()
    }
}

impl TryFrom<String> for EncodingSpec {
    type Error = UnknownEncoding;

    fn try_from(text: String) -> Result<Self, UnknownEncoding> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_an_encoding_is_read_back() {
        for text in ["fp16", "bf16", "int8", "top-k:0.01", "top-k:0.4999", "top-k:0.000000001"] {
            let encoding: EncodingSpec = text.parse().unwrap();
            assert_eq!(encoding.to_string(), text);
            let json = serde_json::to_string(&encoding).unwrap();
            assert_eq!(serde_json::from_str::<EncodingSpec>(&json).unwrap(), encoding);
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "f16",
            "INT8",
            "top-k",
            "top-k:",
            "top-k:0",
            "top-k:0.5",
            "top-k:-0.1",
            "top-k:nan",
            "top-k:inf",
        ] {
            let error = text.parse::<EncodingSpec>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("unknown encoding '{text}', expected fp16")), "{error}");
        }
    }
}
