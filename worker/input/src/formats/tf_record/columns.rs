//! Converts the features of TFRecord examples into the columns of a data set. This module must not depend on
//! how records are framed or on how they are encoded.

use std::path::Path;
use std::sync::Arc;

use pushpull_messages::input::{ColumnSpec, FeatureKind, FeatureSpec, TfRecordSpec};

use super::example::{Example, Values};
use super::records::Records;
use crate::dataset::{Reader, Rows, skip_by_reading};
use crate::files::{BadRecords, Format};
use crate::{InputError, RecordError, Storage};

/// An error message that lists feature names shows at most this many characters of the list.
const SHOWN_BYTES_MAX: usize = 400;

/// The format of TFRecord files, together with the features that a spec names.
pub(crate) struct TfRecordFormat {
    features: Vec<FeatureSpec>,
    bad: BadRecords,
}

impl TfRecordFormat {
    pub(crate) fn new(spec: &TfRecordSpec, bad: BadRecords) -> Self {
        Self { features: spec.features.clone(), bad }
    }
}

impl Format for TfRecordFormat {
    fn rows(&self) -> Result<Rows, InputError> {
        let column = |feature: &FeatureSpec| -> (ColumnSpec, Storage) {
            let storage = match feature.kind {
                FeatureKind::Float => Storage::F32(Vec::new()),
                FeatureKind::Int64 => Storage::I32(Vec::new()),
                FeatureKind::Pixels => Storage::Pixels(Vec::new()),
                FeatureKind::Bytes => Storage::Bytes(Vec::new()),
            };
            (feature.column(), storage)
        };
        Rows::new(self.features.iter().map(column).collect())
    }

    fn open(self: Arc<Self>, file: &Path) -> Result<Box<dyn Reader>, InputError> {
        Ok(Box::new(TfRecordReader { records: Records::open(file)?, format: self, any: false }))
    }
}

struct TfRecordReader {
    format: Arc<TfRecordFormat>,
    records: Records,
    /// True after a record was read, even if the record was damaged and skipped.
    any: bool,
}

impl TfRecordReader {
    /// Appends the next record to `rows`. Returns false at the end of the file.
    fn next(&mut self, rows: &mut Rows) -> Result<bool, InputError> {
        let Some(data) = self.records.next()? else { return Ok(false) };
        let example = match Example::from_bytes(data) {
            Ok(example) => example,
            Err(error) => return Err(self.records.bad_last(RecordError::NotAnExample(error.to_string()))),
        };
        rows.begin()?;
        for (position, feature) in self.format.features.iter().enumerate() {
            if let Err(problem) = append(&example, feature, rows.column(position)) {
                rows.abandon();
                return Err(self.records.bad_last(problem));
            }
        }
        rows.end();
        Ok(true)
    }

    /// Returns an error if the file has no record. Must be called only at the end of the file.
    fn check_end(&self) -> Result<(), InputError> {
        match self.any {
            true => Ok(()),
            false => Err(InputError::NoExample { file: self.records.path().to_path_buf() }),
        }
    }
}

impl Reader for TfRecordReader {
    fn read(&mut self, examples: usize, rows: &mut Rows) -> Result<usize, InputError> {
        let mut read = 0;
        while read < examples {
            match self.next(rows) {
                Ok(true) => read += 1,
                Ok(false) => {
                    self.any |= read > 0;
                    self.check_end()?;
                    break;
                }
                Err(error) if self.records.in_step() => {
                    self.format.bad.skip(self.records.offset(), error)?;
                    self.any = true;
                }
                Err(error) => return Err(error),
            }
        }
        self.any |= read > 0;
        Ok(read)
    }

    fn skip(&mut self, examples: u64, rows: &mut Rows) -> Result<u64, InputError> {
        if !self.format.bad.none() {
            // Only reading shows which records are damaged.
            return skip_by_reading(self, examples, rows);
        }
        let mut skipped = 0;
        while skipped < examples && self.records.skip()? {
            skipped += 1;
        }
        self.any |= skipped > 0;
        if skipped < examples {
            self.check_end()?;
        }
        Ok(skipped)
    }
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
            if let Some(at) = floats.value.iter().position(|value| !value.is_finite()) {
                return Err(RecordError::NotFinite { feature: name(), value: floats.value[at], at });
            }
            column.extend_from_slice(&floats.value);
        }
        (Some(Values::Ints(ints)), Storage::I32(column)) => {
            count("integers", ints.value.len(), expected)?;
            for &value in &ints.value {
                let fits = i32::try_from(value);
                column.push(fits.map_err(|_| RecordError::Integer { feature: name(), value })?);
            }
        }
        (Some(Values::Bytes(strings)), column)
            if matches!(spec.kind, FeatureKind::Pixels | FeatureKind::Bytes) =>
        {
            count("strings", strings.value.len(), 1)?;
            let bytes = &strings.value[0];
            count("bytes", bytes.len(), expected)?;
            column.extend_bytes(bytes.iter().copied());
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
