//! Deserializes floats from JSON. Reads `null` as NaN, because JSON has no NaN.

use serde::{Deserialize, Deserializer};

/// Deserializes a float. Reads `null` as NaN, because serde_json writes `null` for every number that is not
/// finite.
pub(crate) fn or_nan<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + From<f32>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_else(|| f32::NAN.into()))
}
