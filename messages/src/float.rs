//! Floats in JSON, which has no NaN: `null` is read as one. Knows not whose they are.

use serde::{Deserialize, Deserializer};

/// A float; NaN where there is `null`, as serde_json writes what is not finite.
pub(crate) fn or_nan<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + From<f32>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_else(|| f32::NAN.into()))
}
