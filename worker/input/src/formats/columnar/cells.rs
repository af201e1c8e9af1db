//! Converts the fields of some rows into the elements of columns. This module must not depend on formats.

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use pushpull_messages::input::{FieldSpec, ListKind, TableColumnSpec, TableFieldsSpec};

use super::lists::List;
use super::numbers::{floats, integers, is_integer, is_number, words};
use super::selection::Wanted;
use crate::generated::vocabulary::Vocabulary;
use crate::{RecordError, Storage, TableError};

/// An error message that quotes a value shows at most this many of its characters.
const SHOWN_MAX: usize = 40;

/// A field from which a column is made.
pub(super) enum Cell {
    Number { field: FieldSpec, missing: Option<f32> },
    Category { field: FieldSpec, vocabulary: Vocabulary },
    List(List),
}

/// The values of a field for some rows.
pub(super) enum Values {
    /// A number for each row. It is not finite if the value is not valid.
    Numbers(Vec<f32>),
    /// An id for each row; `None` if the value is not valid.
    Ids(Vec<Option<i32>>),
    /// Nothing, because lists are converted later, row by row.
    Lists,
}

impl Cell {
    /// Returns the fields of a column, in the order of its elements.
    pub(super) fn all(column: &TableColumnSpec) -> Vec<Self> {
        let number = |spec: &pushpull_messages::input::NumberSpec| Self::Number {
            field: spec.field.clone(),
            missing: spec.missing,
        };
        let category = |spec: &pushpull_messages::input::CategorySpec| Self::Category {
            field: spec.field.clone(),
            vocabulary: Vocabulary::new(spec),
        };
        match &column.fields {
            TableFieldsSpec::Number(spec) => vec![number(spec)],
            TableFieldsSpec::Numbers(all) => all.iter().map(number).collect(),
            TableFieldsSpec::Category(spec) => vec![category(spec)],
            TableFieldsSpec::Categories(all) => all.iter().map(category).collect(),
            TableFieldsSpec::List(spec) => vec![Self::List(List::new(spec))],
        }
    }

    /// Returns an empty storage for the elements of a column.
    pub(super) fn storage(column: &TableColumnSpec) -> Storage {
        match &column.fields {
            TableFieldsSpec::Number(_) | TableFieldsSpec::Numbers(_) => Storage::F32(Vec::new()),
            TableFieldsSpec::Category(_) | TableFieldsSpec::Categories(_) => Storage::I32(Vec::new()),
            TableFieldsSpec::List(list) => match list.kind {
                ListKind::Float => Storage::F32(Vec::new()),
                ListKind::Integer => Storage::I32(Vec::new()),
                ListKind::Pixels => Storage::Pixels(Vec::new()),
                ListKind::Bytes => Storage::Bytes(Vec::new()),
            },
        }
    }

    /// Returns the field that the cell reads from a file, and the number of its elements in each row.
    pub(super) fn wanted(&self) -> Wanted {
        let elements = match self {
            Self::Number { .. } | Self::Category { .. } => 1,
            Self::List(list) => list.elements(),
        };
        Wanted { field: self.field().clone(), elements }
    }

    fn field(&self) -> &FieldSpec {
        match self {
            Self::Number { field, .. } | Self::Category { field, .. } => field,
            Self::List(list) => list.field(),
        }
    }

    /// Checks that the field's type suits the column.
    ///
    /// # Errors
    /// [`TableError::Type`] if it does not.
    pub(super) fn check(&self, kind: &DataType) -> Result<(), TableError> {
        let plain = match kind {
            DataType::Dictionary(_, values) => values,
            other => other,
        };
        let (suits, expected) = match self {
            Self::Number { .. } => (is_number(plain), "integers, floats or booleans".to_owned()),
            Self::Category { .. } => {
                (is_integer(plain) || is_text(plain), "strings, integers or booleans".to_owned())
            }
            Self::List(list) => (list.suits(kind), list.expected()),
        };
        if suits {
            return Ok(());
        }
        let got = kind.to_string().chars().take(200).flat_map(char::escape_debug).collect();
        Err(TableError::Type { field: self.field().clone(), expected, got })
    }

    /// Converts the values of all rows in `array`.
    pub(super) fn values(&self, array: &ArrayRef) -> Values {
        match self {
            Self::Number { missing, .. } => {
                let mut numbers = expanded(array, f32::NAN, floats);
                for row in nulls(array) {
                    numbers[row] = missing.unwrap_or(f32::NAN);
                }
                Values::Numbers(numbers)
            }
            Self::Category { vocabulary, .. } => {
                let mut ids = expanded(array, None, |values| ids(values, vocabulary));
                for row in nulls(array) {
                    ids[row] = vocabulary.unknown();
                }
                Values::Ids(ids)
            }
            Self::List(_) => Values::Lists,
        }
    }

    /// Appends the elements of one row to a column. `row` is the index of the row in `array`. `values` are
    /// the result of [`values`](Self::values) for at least the first `row + 1` rows of `array`.
    ///
    /// # Errors
    /// If the row's value is not valid. Some of the row's elements may then have been appended.
    pub(super) fn append(
        &self,
        values: &Values,
        array: &ArrayRef,
        row: usize,
        column: &mut Storage,
    ) -> Result<(), RecordError> {
        match (self, values, column) {
            (Self::Number { .. }, Values::Numbers(numbers), Storage::F32(column)) => {
                let number = Some(numbers[row]).filter(|number| number.is_finite());
                column.push(number.ok_or_else(|| self.bad(array, row, "a finite number"))?);
            }
            (Self::Category { vocabulary, .. }, Values::Ids(ids), Storage::I32(column)) => {
                column.push(ids[row].ok_or_else(|| self.bad(array, row, vocabulary.expected()))?);
            }
            (Self::List(list), Values::Lists, column) => list.append(array, row, column)?,
            _ => unreachable!("columns are made for their fields"),
        }
        Ok(())
    }

    /// Returns the error for a value that is not valid.
    fn bad(&self, array: &ArrayRef, row: usize, expected: &'static str) -> RecordError {
        let field = self.field().clone();
        let one = array.slice(row, 1);
        if one.logical_null_count() > 0 {
            return RecordError::Null { field, expected };
        }
        let text = |values: &dyn Array| match values.data_type() {
            kind if is_text(kind) => {
                texts(values).into_iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect()
            }
            kind if is_integer(kind) => words(values),
            _ => floats(values).iter().map(f32::to_string).collect::<Vec<_>>(),
        };
        let shown = expanded(&one, String::new(), text).concat();
        let got = shown.chars().take(SHOWN_MAX).flat_map(char::escape_debug).collect();
        RecordError::Field { field, expected, got }
    }
}

/// Returns the rows that are null.
fn nulls(array: &ArrayRef) -> Vec<usize> {
    let Some(nulls) = array.logical_nulls().filter(|nulls| nulls.null_count() > 0) else {
        return Vec::new();
    };
    (0..array.len()).filter(|&row| nulls.is_null(row)).collect()
}

/// Converts the values of an array. If the array has a dictionary with at most as many entries as rows,
/// converts each entry once. If the dictionary is larger, converts one entry for each row instead. If the
/// dictionary is empty, all rows are null, and each gets the value `null`.
fn expanded<T: Clone>(array: &ArrayRef, null: T, convert: impl Fn(&dyn Array) -> Vec<T>) -> Vec<T> {
    let Some(dictionary) = array.as_any_dictionary_opt() else { return convert(array) };
    let entries = dictionary.values();
    if entries.is_empty() {
        return vec![null; array.len()];
    }
    let keys = dictionary.normalized_keys().into_iter();
    if entries.len() > array.len() {
        return keys.flat_map(|key| convert(&entries.slice(key, 1))).collect();
    }
    let values = convert(entries);
    keys.map(|key| values[key].clone()).collect()
}

const fn is_text(kind: &DataType) -> bool {
    matches!(
        kind,
        DataType::Utf8
            | DataType::LargeUtf8
            | DataType::Utf8View
            | DataType::Binary
            | DataType::LargeBinary
            | DataType::BinaryView
    )
}

/// Returns the bytes of strings. The value of a null is arbitrary.
fn texts(array: &dyn Array) -> Vec<&[u8]> {
    let rows = 0..array.len();
    match array.data_type() {
        DataType::Utf8 => rows.map(|row| array.as_string::<i32>().value(row).as_bytes()).collect(),
        DataType::LargeUtf8 => rows.map(|row| array.as_string::<i64>().value(row).as_bytes()).collect(),
        DataType::Utf8View => rows.map(|row| array.as_string_view().value(row).as_bytes()).collect(),
        DataType::Binary => rows.map(|row| array.as_binary::<i32>().value(row)).collect(),
        DataType::LargeBinary => rows.map(|row| array.as_binary::<i64>().value(row)).collect(),
        DataType::BinaryView => rows.map(|row| array.as_binary_view().value(row)).collect(),
        other => unreachable!("{other} was refused when the file was opened"),
    }
}

/// Returns the id of each value; `None` for a value without an id.
fn ids(array: &dyn Array, vocabulary: &Vocabulary) -> Vec<Option<i32>> {
    match array.data_type() {
        kind if is_text(kind) => texts(array).into_iter().map(|text| vocabulary.id(text)).collect(),
        DataType::Boolean => {
            array.as_boolean().values().iter().map(|value| vocabulary.id_of_boolean(value)).collect()
        }
        DataType::UInt64 => {
            let values = array.as_primitive::<UInt64Type>().values().iter();
            values.map(|&value| vocabulary.id_of_integer(value.into())).collect()
        }
        _ => integers(array).into_iter().map(|value| vocabulary.id_of_integer(value.into())).collect(),
    }
}
