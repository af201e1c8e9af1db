//! What can be wrong with one record of a file.
//! Knows neither the file nor where in it the record lies.

use pushpull_messages::input::FieldSpec;

/// Why a record is no example.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The file ends inside the record.
    #[error("expected {expected} bytes of {part}, got {got}: the file ends there; fetch it again")]
    Short {
        /// The part that is not complete.
        part: &'static str,
        /// How many bytes it has.
        expected: u64,
        /// How many there are.
        got: u64,
    },
    /// The record is longer than any that is read.
    #[error("the record has {bytes} bytes, expected at most {max}: split it")]
    TooLong {
        /// What it says of itself.
        bytes: u64,
        /// Most bytes.
        max: u64,
    },
    /// A label is not the number of a class.
    #[error("label {label}, expected 0 to {max}: name a file of that format")]
    Label {
        /// The label.
        label: u8,
        /// The last class.
        max: u8,
    },
    /// A checksum is not that of the bytes it stands for.
    #[error(
        "the checksum of its {part} is {stored:#010x}, and its bytes have {computed:#010x}: fetch the file again"
    )]
    Checksum {
        /// What it stands for: the length or the data.
        part: &'static str,
        /// The checksum in the file.
        stored: u32,
        /// The checksum of the bytes in the file.
        computed: u32,
    },
    /// The record's bytes are no `tf.train.Example`.
    #[error("not a tf.train.Example: {0}")]
    NotAnExample(String),
    /// The record lacks a feature.
    #[error("no feature '{feature}', but {there}: correct the name or the file")]
    NoFeature {
        /// Its name.
        feature: String,
        /// What there is instead.
        there: String,
    },
    /// A feature has values of another kind.
    #[error("feature '{feature}' has {got}, expected {expected}")]
    Kind {
        /// Its name.
        feature: String,
        /// The kind wanted.
        expected: &'static str,
        /// The kind that came.
        got: &'static str,
    },
    /// A feature has another number of values.
    #[error("feature '{feature}' has {got} {what}, expected {expected}: correct its shape or the file")]
    Count {
        /// Its name.
        feature: String,
        /// What is counted.
        what: &'static str,
        /// How many were wanted.
        expected: usize,
        /// How many came.
        got: usize,
    },
    /// An integer does not fit in a column of integers.
    #[error("feature '{feature}' has {value}, expected a number that fits in 32 bits")]
    Integer {
        /// Its name.
        feature: String,
        /// The number.
        value: i64,
    },
    /// A row lacks a field.
    #[error("no {field} among the row's {fields}: correct the delimiter, the position or the row")]
    NoField {
        /// Which one.
        field: FieldSpec,
        /// How many fields the row has.
        fields: usize,
    },
    /// A header lacks a field.
    #[error("no {field} in the header, which has {there}")]
    NotInHeader {
        /// Which one.
        field: FieldSpec,
        /// What the header has.
        there: String,
    },
    /// A field holds something else.
    #[error("{field} is '{got}', expected {expected}")]
    Field {
        /// Which one.
        field: FieldSpec,
        /// What it should hold.
        expected: &'static str,
        /// What it holds, shortened.
        got: String,
    },
}
