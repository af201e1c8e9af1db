//! The text of a compression on a command line: a pattern for the names of variables, and the encodings in
//! which their gradients and values are sent. This module must not depend on models.

use pushpull_messages::compression::{CompressionSpec, EncodingSpec};

/// The possible settings, as listed in an error text.
const SETTINGS: &str =
    "fp16, bf16, int8 or none for both ways, or gradients=ENCODING, values=ENCODING or both";

/// Parses a compression, such as `int8`, `gradients=top-k:0.01,values=bf16` or `*/bias:none`. The pattern is
/// checked later, with the job.
///
/// # Errors
/// Returns an error that names the invalid setting or lists the valid ones.
pub(super) fn compress(text: &str) -> Result<CompressionSpec, String> {
    // The colon in `top-k:0.01` ends no pattern.
    let is_pattern = |before: &str| !before.contains('=');
    let (pattern, settings) = match text.split_once(':') {
        Some(("top-k", fraction)) if fraction.parse::<f64>().is_ok() => ("*", text),
        Some((pattern, settings)) if is_pattern(pattern) => (pattern, settings),
        _ => ("*", text),
    };
    let mut spec = CompressionSpec::new(pattern);
    if let Some(encoding) = both_ways(settings)? {
        return Ok(match encoding {
            Some(encoding) => spec.gradients(encoding).values(encoding),
            None => spec,
        });
    }
    for setting in settings.split(',') {
        let unknown = || format!("unknown setting '{setting}', expected {SETTINGS}");
        let (key, value) = setting.split_once('=').ok_or_else(unknown)?;
        let place = match key {
            "gradients" => &mut spec.gradients,
            "values" => &mut spec.values,
            _ => return Err(unknown()),
        };
        if place.is_some() {
            return Err(format!("'{key}' is given twice"));
        }
        let encoding: EncodingSpec = value.parse().map_err(|error| format!("{error}"))?;
        if key == "values" && !encoding.is_dense() {
            return Err(format!("values cannot be sent as {encoding}, expected fp16, bf16 or int8"));
        }
        *place = Some(encoding);
    }
    Ok(spec)
}

/// Returns the encoding of settings that are a single name: `Some(None)` for `none`, and `None` if the
/// settings are no such name.
fn both_ways(settings: &str) -> Result<Option<Option<EncodingSpec>>, String> {
    match settings.parse::<EncodingSpec>() {
        _ if settings == "none" => Ok(Some(None)),
        Ok(encoding) if encoding.is_dense() => Ok(Some(Some(encoding))),
        Ok(encoding) => Err(format!("{encoding} is for gradients only, write gradients={encoding}")),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOP: EncodingSpec = EncodingSpec::TopK { fraction: 0.01 };

    #[test]
    fn a_compression_is_a_pattern_and_encodings() {
        let new = |pattern: &str| CompressionSpec::new(pattern);
        let both = |pattern: &str, encoding| new(pattern).gradients(encoding).values(encoding);
        for (text, expected) in [
            ("int8", both("*", EncodingSpec::Int8)),
            ("bf16", both("*", EncodingSpec::Bf16)),
            ("conv*:fp16", both("conv*", EncodingSpec::Fp16)),
            ("*/bias:none", new("*/bias")),
            ("none", new("*")),
            ("gradients=top-k:0.01,values=bf16", new("*").gradients(TOP).values(EncodingSpec::Bf16)),
            ("values=int8,gradients=top-k:0.01", new("*").gradients(TOP).values(EncodingSpec::Int8)),
            ("a/*:gradients=top-k:0.01", new("a/*").gradients(TOP)),
            ("a:values=int8", new("a").values(EncodingSpec::Int8)),
            ("top-k:int8", both("top-k", EncodingSpec::Int8)),
        ] {
            assert_eq!(compress(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn a_compression_that_says_nothing_known_is_refused() {
        for (text, words) in [
            ("int4", "unknown setting 'int4', expected fp16, bf16, int8 or none"),
            ("", "unknown setting ''"),
            ("conv*:", "unknown setting ''"),
            ("top-k:0.01", "top-k:0.01 is for gradients only, write gradients=top-k:0.01"),
            ("a:top-k:0.01", "top-k:0.01 is for gradients only"),
            ("top-k:2", "unknown setting 'top-k:2'"),
            (
                "gradients=top-k:0.7",
                "unknown encoding 'top-k:0.7', expected fp16, bf16, int8, or top-k:FRACTION",
            ),
            ("gradients=int4", "unknown encoding 'int4'"),
            ("values=top-k:0.01", "values cannot be sent as top-k:0.01, expected fp16, bf16 or int8"),
            ("weights=int8", "unknown setting 'weights=int8'"),
            ("values=int8,values=int8", "'values' is given twice"),
            ("int8,values=int8", "unknown setting 'int8'"),
        ] {
            let error = compress(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
