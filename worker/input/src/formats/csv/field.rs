//! Parses one field of a row into a number or the id of a word. This module must not depend on the file or
//! on the row.

use pushpull_messages::input::{CategorySpec, FieldSpec, NumberSpec};

use crate::RecordError;
use crate::generated::vocabulary::Vocabulary;

/// An error message that quotes a field shows at most this many of its bytes.
const SHOWN_BYTES_MAX: usize = 40;

/// A field that every row must have.
pub(super) struct Field {
    pub(super) spec: FieldSpec,
}

impl Field {
    /// Returns the bytes of this field in `row`; `index` is the position of the field.
    fn of<'r>(&self, index: usize, row: &'r csv::ByteRecord) -> Result<&'r [u8], RecordError> {
        let missing = || RecordError::NoField { field: self.spec.clone(), fields: row.len() };
        row.get(index).ok_or_else(missing)
    }

    fn bad(&self, expected: &'static str, got: &[u8]) -> RecordError {
        let shown = String::from_utf8_lossy(&got[..got.len().min(SHOWN_BYTES_MAX)]);
        // The text is escaped because the error must be a single line.
        let got = shown.chars().flat_map(char::escape_debug).collect();
        RecordError::Field { field: self.spec.clone(), expected, got }
    }
}

/// A field that holds a number.
pub(super) struct Number {
    pub(super) field: Field,
    missing: Option<f32>,
}

impl Number {
    pub(super) fn new(spec: &NumberSpec) -> Self {
        Self { field: Field { spec: spec.field.clone() }, missing: spec.missing }
    }

    pub(super) fn read(&self, index: usize, row: &csv::ByteRecord) -> Result<f32, RecordError> {
        let bytes = self.field.of(index, row)?;
        if let (true, Some(missing)) = (bytes.is_empty(), self.missing) {
            return Ok(missing);
        }
        let number = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
        number
            .filter(|number: &f32| number.is_finite())
            .ok_or_else(|| self.field.bad("a finite number", bytes))
    }
}

/// A field that holds a word of a vocabulary, or the id of a word.
pub(super) struct Category {
    pub(super) field: Field,
    vocabulary: Vocabulary,
}

impl Category {
    pub(super) fn new(spec: &CategorySpec) -> Self {
        Self { field: Field { spec: spec.field.clone() }, vocabulary: Vocabulary::new(spec) }
    }

    pub(super) fn read(&self, index: usize, row: &csv::ByteRecord) -> Result<i32, RecordError> {
        let bytes = self.field.of(index, row)?;
        self.vocabulary.id(bytes).ok_or_else(|| self.field.bad(self.vocabulary.expected(), bytes))
    }
}
