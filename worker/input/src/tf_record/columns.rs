//! Converts the features of TFRecord examples into the columns of a data set. This module must not depend on
//! how records are framed or on how they are encoded.

use std::path::Path;

use pushpull_messages::input::{ColumnSpec, FeatureKind, FeatureSpec, TfRecordSpec};

use super::example::{Example, Values};
use super::records::Records;
use crate::rows::Rows;
use crate::{InputError, RecordError, Storage};

/// The maximum number of bytes of feature names that an error message quotes.
const SHOWN_BYTES_MAX: usize = 400;

/// Returns the columns of `spec`, still without elements.
pub(crate) fn columns(spec: &TfRecordSpec) -> Vec<(ColumnSpec, Storage)> {
    let column = |feature: &FeatureSpec| {
        let storage = match feature.kind {
            FeatureKind::Float => Storage::F32(Vec::new()),
            FeatureKind::Int64 => Storage::I32(Vec::new()),
            FeatureKind::Pixels => Storage::Pixels(Vec::new()),
            FeatureKind::Bytes => Storage::Bytes(Vec::new()),
        };
        (feature.column(), storage)
    };
    spec.features.iter().map(column).collect()
}

/// Appends all records of a file to `rows`.
pub(crate) fn read(path: &Path, spec: &TfRecordSpec, rows: &mut Rows) -> Result<(), InputError> {
    let mut records = Records::open(path)?;
    let before = rows.examples();
    while let Some(data) = records.next()? {
        let example = Example::from_bytes(data);
        let example = match example {
            Ok(example) => example,
            Err(error) => return Err(records.bad_last(RecordError::NotAnExample(error.to_string()))),
        };
        rows.begin()?;
        for (position, feature) in spec.features.iter().enumerate() {
            append(&example, feature, rows.column(position)).map_err(|problem| records.bad_last(problem))?;
        }
        rows.end();
    }
    if rows.examples() == before {
        return Err(InputError::NoExample { file: records.path().to_path_buf() });
    }
    Ok(())
}

fn append(example: &Example, spec: &FeatureSpec, column: &mut Storage) -> Result<(), RecordError> {
    let name = || spec.feature.clone();
    let Some(found) = example.feature(&spec.feature) else {
        let names: Vec<&str> = example.names().take(50).collect();
        let there = names.join(", ").chars().flat_map(char::escape_debug).take(SHOWN_BYTES_MAX).collect();
        return Err(RecordError::NoFeature { feature: name(), there });
    };
    let expected = spec.shape.checked_elements().unwrap_or(usize::MAX);
    let count = |what, got, expected| match got == expected {
        true => Ok(()),
        false => Err(RecordError::Count { feature: name(), what, expected, got }),
    };
    match (&found.values, column) {
        (Some(Values::Floats(floats)), Storage::F32(column)) => {
            count("floats", floats.value.len(), expected)?;
            column.extend_from_slice(&floats.value);
        }
        (Some(Values::Ints(ints)), Storage::I32(column)) => {
            count("integers", ints.value.len(), expected)?;
            for &value in &ints.value {
                let fits = i32::try_from(value);
                column.push(fits.map_err(|_| RecordError::Integer { feature: name(), value })?);
            }
        }
        (Some(Values::Bytes(strings)), Storage::Pixels(column) | Storage::Bytes(column)) => {
            count("strings", strings.value.len(), 1)?;
            let bytes = &strings.value[0];
            count("bytes", bytes.len(), expected)?;
            column.extend_from_slice(bytes);
        }
        (values, _) => {
            let got = match values {
                Some(Values::Floats(_)) => "floats",
                Some(Values::Ints(_)) => "integers",
                Some(Values::Bytes(_)) => "bytes",
                None => "nothing",
            };
            let expected = match spec.kind {
                FeatureKind::Float => "floats",
                FeatureKind::Int64 => "integers",
                FeatureKind::Pixels | FeatureKind::Bytes => "bytes",
            };
            return Err(RecordError::Kind { feature: name(), expected, got });
        }
    }
    Ok(())
}
