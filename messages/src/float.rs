//! Floats in JSON, which has no NaN: `null` is read as NaN. Does not know which fields use it.

use serde::{Deserialize, Deserializer};

/// Deserializes a float, and `null`, which serde_json writes for numbers that are not finite, as NaN.
pub(crate) fn or_nan<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + From<f32>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_else(|| f32::NAN.into()))
}
