//! Converts fields that hold a list of numbers in each row, such as images. This module must not depend on
//! formats.

use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt8Type;
use arrow_array::{Array, OffsetSizeTrait};
use arrow_schema::DataType;
use pushpull_messages::input::{FieldSpec, ListKind, ListSpec};

use super::numbers::{floats, integers, is_integer, is_number, words};
use crate::{RecordError, Storage};

/// The maximum nesting depth of lists.
const DEPTH_MAX: usize = 8;

/// A field of lists from which a column is made.
pub(super) struct List {
    spec: ListSpec,
    elements: usize,
}

impl List {
    pub(super) fn new(spec: &ListSpec) -> Self {
        Self { spec: spec.clone(), elements: spec.shape.checked_elements().unwrap_or(0) }
    }

    pub(super) fn field(&self) -> &FieldSpec {
        &self.spec.field
    }

    /// Returns the number of elements in each row.
    pub(super) fn elements(&self) -> usize {
        self.elements
    }

    /// Returns what the field must hold, for an error message.
    pub(super) fn expected(&self) -> String {
        let numbers = match self.spec.kind {
            ListKind::Float => "numbers",
            ListKind::Integer => "integers",
            ListKind::Pixels | ListKind::Bytes => "integers, or bytes",
        };
        // The error names the number of elements, because it is a part of the type of a fixed-size list.
        let elements = self.elements;
        match self.spec.shape.0.len() {
            0 | 1 => format!("a list of {numbers}, {elements} of them"),
            axes => format!("a list of {numbers}, {elements} of them, flat or of {axes} levels"),
        }
    }

    /// Returns true if lists of this type can be converted: they are flat, or have a level for each axis of
    /// the shape. If the type itself contains a size, that size must equal the size in the shape, because
    /// the type's size determines how much memory each row takes.
    pub(super) fn suits(&self, kind: &DataType) -> bool {
        let (depth, leaf) = leaf(kind);
        let levels = depth == 1 || (depth == self.spec.shape.0.len() && depth <= DEPTH_MAX);
        let numbers = match self.spec.kind {
            ListKind::Float => is_number(leaf),
            ListKind::Integer => is_integer(leaf),
            ListKind::Pixels | ListKind::Bytes => is_integer(leaf) || is_bytes(leaf),
        };
        levels && numbers && self.sizes_fit(kind, depth)
    }

    /// Returns true if every size that a list type contains is the expected one: the size of the shape's axis
    /// at the same level or, for a flat list, the number of elements. The type has `depth` levels.
    fn sizes_fit(&self, mut kind: &DataType, depth: usize) -> bool {
        for level in 0..depth {
            let length = if depth > 1 { self.spec.shape.0[level] } else { self.elements };
            let size = match kind {
                DataType::FixedSizeList(_, size) | DataType::FixedSizeBinary(size) => Some(*size),
                _ => None,
            };
            if size.is_some_and(|size| usize::try_from(size) != Ok(length)) {
                return false;
            }
            if let DataType::List(inner) | DataType::LargeList(inner) | DataType::FixedSizeList(inner, _) =
                kind
            {
                kind = inner.data_type();
            }
        }
        true
    }

    /// Appends the elements of one row to a column.
    ///
    /// # Errors
    /// If the row's list is not valid. Some of its elements may then have been appended.
    pub(super) fn append(
        &self,
        array: &dyn Array,
        row: usize,
        column: &mut Storage,
    ) -> Result<(), RecordError> {
        let nested = leaf(array.data_type()).0 > 1;
        let (mut array, mut rows, mut level) = (array, row..row + 1, 0);
        loop {
            self.check_nulls(array, &rows)?;
            let length = if nested { self.spec.shape.0.get(level).copied() } else { None };
            let length = length.unwrap_or(self.elements);
            (array, rows) = match array.data_type() {
                DataType::List(_) => {
                    let list = array.as_list::<i32>();
                    (list.values(), self.inner(list.value_offsets(), rows, length)?)
                }
                DataType::LargeList(_) => {
                    let list = array.as_list::<i64>();
                    (list.values(), self.inner(list.value_offsets(), rows, length)?)
                }
                DataType::FixedSizeList(_, _) => {
                    let list = array.as_fixed_size_list();
                    let got = usize::try_from(list.value_length()).unwrap_or(0);
                    self.check_length(got, length)?;
                    (list.values(), rows.start * got..rows.end * got)
                }
                kind if is_bytes(kind) => {
                    for row in rows {
                        let bytes = bytes(array, row);
                        self.check_length(bytes.len(), length)?;
                        column.extend_bytes(bytes.iter().copied());
                    }
                    return Ok(());
                }
                _ => return self.append_numbers(array, rows, column),
            };
            level += 1;
        }
    }

    /// Returns the range that the lists in `rows` occupy in the array of all elements. Each of these lists
    /// must have `length` elements.
    fn inner<O: OffsetSizeTrait>(
        &self,
        offsets: &[O],
        rows: Range<usize>,
        length: usize,
    ) -> Result<Range<usize>, RecordError> {
        let offsets = &offsets[rows.start..=rows.end];
        for pair in offsets.windows(2) {
            self.check_length(pair[1].as_usize() - pair[0].as_usize(), length)?;
        }
        Ok(offsets[0].as_usize()..offsets[offsets.len() - 1].as_usize())
    }

    fn append_numbers(
        &self,
        array: &dyn Array,
        rows: Range<usize>,
        column: &mut Storage,
    ) -> Result<(), RecordError> {
        if let (DataType::UInt8, Storage::Pixels(_) | Storage::Bytes(_)) = (array.data_type(), &*column) {
            column.extend_bytes(array.as_primitive::<UInt8Type>().values()[rows].iter().copied());
            return Ok(());
        }
        let part = array.slice(rows.start, rows.len());
        match column {
            Storage::F32(column) => {
                let numbers = floats(&part);
                if let Some(number) = numbers.iter().find(|number| !number.is_finite()) {
                    return Err(self.bad(number, "finite numbers"));
                }
                column.extend_from_slice(&numbers);
            }
            Storage::I32(column) => {
                for (at, value) in integers(&part).into_iter().enumerate() {
                    let value = i32::try_from(value).map_err(|_| self.not(&part, at, "integers of 32 bits"));
                    column.push(value?);
                }
            }
            Storage::Pixels(column) | Storage::Bytes(column) => {
                for (at, value) in integers(&part).into_iter().enumerate() {
                    column.push(u8::try_from(value).map_err(|_| self.not(&part, at, "0 to 255"))?);
                }
            }
            Storage::Windows { .. } => unreachable!("columns are made for their fields"),
        }
        Ok(())
    }

    fn check_nulls(&self, array: &dyn Array, rows: &Range<usize>) -> Result<(), RecordError> {
        let null = array.nulls().is_some_and(|nulls| rows.clone().any(|row| nulls.is_null(row)));
        match null {
            true => Err(RecordError::Null { field: self.field().clone(), expected: "a list without nulls" }),
            false => Ok(()),
        }
    }

    fn check_length(&self, got: usize, expected: usize) -> Result<(), RecordError> {
        match got == expected {
            true => Ok(()),
            false => Err(RecordError::Length { field: self.field().clone(), expected, got }),
        }
    }

    /// Returns an error that quotes the integer at index `at` of `integers`; `expected` describes the valid
    /// integers.
    fn not(&self, integers: &dyn Array, at: usize, expected: &'static str) -> RecordError {
        self.bad(words(&integers.slice(at, 1)).concat(), expected)
    }

    fn bad(&self, got: impl ToString, expected: &'static str) -> RecordError {
        RecordError::Field { field: self.field().clone(), expected, got: got.to_string() }
    }
}

/// Returns the number of levels of lists in a type, and the type of the innermost elements. Binary data
/// counts as a list.
fn leaf(mut kind: &DataType) -> (usize, &DataType) {
    let mut depth = 0;
    while let DataType::List(inner) | DataType::LargeList(inner) | DataType::FixedSizeList(inner, _) = kind {
        (kind, depth) = (inner.data_type(), depth + 1);
    }
    (depth + usize::from(is_bytes(kind)), kind)
}

const fn is_bytes(kind: &DataType) -> bool {
    matches!(
        kind,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_)
    )
}

fn bytes(array: &dyn Array, row: usize) -> &[u8] {
    match array.data_type() {
        DataType::Binary => array.as_binary::<i32>().value(row),
        DataType::LargeBinary => array.as_binary::<i64>().value(row),
        DataType::BinaryView => array.as_binary_view().value(row),
        _ => array.as_fixed_size_binary().value(row),
    }
}
