//! The errors of one record of a file. This module must not depend on the file, or on the record's position
//! in the file.

use pushpull_messages::input::FieldSpec;

/// The reason why a record is not a valid example.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The file ends inside the record.
    #[error("the file ends inside {part}: got {got} bytes, expected {expected}; fetch the file again")]
    Short {
        /// The name of the incomplete part.
        part: &'static str,
        /// The number of bytes that the part should have.
        expected: u64,
        /// The number of bytes found.
        got: u64,
    },
    /// The record is longer than the limit.
    #[error("the record has {bytes} bytes, expected at most {max}: split it")]
    TooLong {
        /// The number of bytes that the record declares.
        bytes: u64,
        /// The maximum number of bytes of a record.
        max: u64,
    },
    /// The file ends inside a quoted field that begins in this row.
    #[error(
        "a field of the row begins with a quote that is never closed: close it, or double each quote in a field"
    )]
    OpenQuote,
    /// A label is not the number of a class.
    #[error("the label is {label}, expected 0 to {max}: correct the format in the spec, or the file")]
    Label {
        /// The label found.
        label: u8,
        /// The greatest allowed label.
        max: u8,
    },
    /// A stored checksum does not match the bytes.
    #[error(
        "the checksum of the {part} is {computed:#010x}, but the file says {stored:#010x}: fetch the file again"
    )]
    Checksum {
        /// The part that the checksum covers: the length or the data.
        part: &'static str,
        /// The checksum that the file contains.
        stored: u32,
        /// The checksum computed from the bytes in the file.
        computed: u32,
    },
    /// The record is not a `tf.train.Example`.
    #[error("the record is not a tf.train.Example: {0}")]
    NotAnExample(String),
    /// The record lacks a feature that the spec names.
    #[error("the record has no feature '{feature}', only [{there}]: correct the name or the file")]
    NoFeature {
        /// The feature's name.
        feature: String,
        /// The names of the features found.
        there: String,
    },
    /// The values of a feature are not of the kind that the spec requires.
    #[error("feature '{feature}' has {got}, expected {expected}: correct the kind in the spec, or the file")]
    Kind {
        /// The feature's name.
        feature: String,
        /// The expected kind of values.
        expected: &'static str,
        /// The kind of values found.
        got: &'static str,
    },
    /// The number of values of a feature is not the number that the spec requires.
    #[error(
        "feature '{feature}' has {got} {what}, expected {expected}: correct the shape in the spec, or the file"
    )]
    Count {
        /// The feature's name.
        feature: String,
        /// The kind of values that were counted.
        what: &'static str,
        /// The expected number of values.
        expected: usize,
        /// The number of values found.
        got: usize,
    },
    /// An integer of a feature does not fit in the `i32` of a column.
    #[error("feature '{feature}' has {value}, expected an integer of 32 bits: correct the file")]
    Integer {
        /// The feature's name.
        feature: String,
        /// The integer found.
        value: i64,
    },
    /// A number of a feature is not finite.
    #[error("feature '{feature}' has {value} at position {at}, expected finite numbers: correct the file")]
    NotFinite {
        /// The feature's name.
        feature: String,
        /// The number found.
        value: f32,
        /// The position of the number among the numbers of the feature, from 0.
        at: usize,
    },
    /// A row lacks a field that the spec names.
    #[error("the row has {fields} fields and no {field}: correct the delimiter, the position or the row")]
    NoField {
        /// The missing field.
        field: FieldSpec,
        /// The number of fields in the row.
        fields: usize,
    },
    /// A row has more fields than the header or, without a header, than the first valid row. Its fields may
    /// be shifted.
    #[error("the row has {fields} fields, expected at most {max}: quote a field that contains the delimiter")]
    MoreFields {
        /// The number of fields in the row.
        fields: usize,
        /// The number of fields in the header or in the first valid row.
        max: usize,
    },
    /// A header lacks a field that the spec names.
    #[error("the header has no {field}, only {there}: correct the name or the delimiter")]
    NotInHeader {
        /// The missing field.
        field: FieldSpec,
        /// The names in the header.
        there: String,
    },
    /// The text of a field cannot be parsed as the kind of value that the spec requires.
    #[error("{field} is '{got}', expected {expected}: correct the row or the column's fields")]
    Field {
        /// The field that was parsed.
        field: FieldSpec,
        /// The expected kind of value.
        expected: &'static str,
        /// The text found, shortened.
        got: String,
    },
    /// A field of a Parquet or Arrow file is null, and the spec gives no value for nulls.
    #[error("{field} is null, expected {expected}: correct the row, or give a value for nulls in the spec")]
    Null {
        /// The field that is null.
        field: FieldSpec,
        /// The expected kind of value.
        expected: &'static str,
    },
    /// A list of a Parquet or Arrow file does not have the length that the spec requires.
    #[error(
        "{field} has a list of {got} elements, expected {expected}: correct the shape in the spec, or the row"
    )]
    Length {
        /// The field with the list.
        field: FieldSpec,
        /// The expected number of elements.
        expected: usize,
        /// The number of elements found.
        got: usize,
    },
}
