//! A block of examples that grows by one example at a time. Readers append to it. This module must not depend
//! on formats.

use pushpull_messages::input::ColumnSpec;
use pushpull_messages::tensor::DType;

use super::{Row, Storage};
use crate::{Column, InputError};

/// The maximum number of bytes that the examples of one data set, or of one shuffle buffer, may take in
/// memory.
pub const HELD_BYTES_MAX: u64 = 4 << 30;

/// A block of examples that all have the same columns.
#[derive(Clone, PartialEq)]
pub struct Rows {
    columns: Vec<(ColumnSpec, Storage)>,
    /// For each column, the number of elements in one example.
    elements: Vec<usize>,
    /// The number of bytes that one example takes in all columns together.
    bytes: u64,
    examples: usize,
}

impl Rows {
    /// Creates a block without examples, for floats and `i32` integers.
    ///
    /// # Errors
    /// [`InputError::Extent`] if a column has no elements per example; [`InputError::ColumnType`] if the
    /// elements are neither `f32` nor `i32`; [`InputError::NoColumn`] if there is no column.
    pub fn of(columns: &[ColumnSpec]) -> Result<Self, InputError> {
        let storage = |spec: &ColumnSpec| match spec.example.dtype {
            DType::F32 => Ok((spec.clone(), Storage::F32(Vec::new()))),
            DType::I32 => Ok((spec.clone(), Storage::I32(Vec::new()))),
            _ => Err(InputError::ColumnType { column: spec.to_string() }),
        };
        Self::new(columns.iter().map(storage).collect::<Result<_, _>>()?)
    }

    /// Creates a block without examples. The storage of each column must be empty; its kind determines how
    /// the elements of the column are stored.
    ///
    /// # Errors
    /// The same as those of [`of`](Self::of).
    pub(crate) fn new(columns: Vec<(ColumnSpec, Storage)>) -> Result<Self, InputError> {
        if columns.is_empty() {
            return Err(InputError::NoColumn);
        }
        let elements: Vec<usize> =
            columns.iter().map(|(spec, _)| spec.example.shape.checked_elements().unwrap_or(0)).collect();
        let bytes = columns
            .iter()
            .zip(&elements)
            .map(|((_, storage), &elements)| (elements as u64).saturating_mul(storage.element_bytes()));
        let bytes = bytes.fold(0u64, u64::saturating_add);
        if let Some(&elements) = elements.iter().find(|&&elements| elements == 0) {
            return Err(InputError::Extent { examples: 0, elements, max: u32::MAX.into() });
        }
        Ok(Self { columns, elements, bytes, examples: 0 })
    }

    /// Returns the number of examples.
    pub fn len(&self) -> usize {
        self.examples
    }

    /// Returns the specs of the columns.
    pub fn columns(&self) -> Vec<ColumnSpec> {
        self.columns.iter().map(|(spec, _)| spec.clone()).collect()
    }

    /// Returns the number of bytes that one example takes in memory.
    pub(crate) fn example_bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns true if there is no example.
    pub fn is_empty(&self) -> bool {
        self.examples == 0
    }

    /// Returns the example at `index`.
    ///
    /// # Panics
    /// If `index` is not below [`len`](Self::len).
    pub fn row(&self, index: usize) -> Row<'_> {
        assert!(index < self.examples, "example {index} of {}", self.examples);
        Row::new(&self.columns, index)
    }

    /// Appends one example: a value for each column, in the order of the columns.
    ///
    /// # Errors
    /// [`InputError::Example`] if there is not exactly one value for each column, or if the type or number of
    /// elements of a value differs from the spec of its column; [`InputError::Held`] or
    /// [`InputError::NoRoom`] if the memory does not suffice for one more example.
    pub fn push(&mut self, example: &[Column]) -> Result<(), InputError> {
        if example.len() != self.columns.len() {
            let expected = ColumnSpec::list(&self.columns());
            let got = format!("{} values", example.len());
            return Err(InputError::Example { expected, got });
        }
        for (value, ((spec, _), &elements)) in example.iter().zip(self.columns.iter().zip(&self.elements)) {
            let (dtype, got) = match value {
                Column::F32(values) => (DType::F32, values.len()),
                Column::I32(values) => (DType::I32, values.len()),
            };
            if dtype != spec.example.dtype || got != elements {
                let got = format!("{got} elements of {dtype}");
                return Err(InputError::Example { expected: spec.to_string(), got });
            }
        }
        self.begin()?;
        for (position, value) in example.iter().enumerate() {
            match (value, &mut self.columns[position].1) {
                (Column::F32(values), Storage::F32(column)) => column.extend_from_slice(values),
                (Column::I32(values), Storage::I32(column)) => column.extend_from_slice(values),
                _ => {
                    self.abandon();
                    let expected = "bytes, as the set stores them".to_owned();
                    return Err(InputError::Example { expected, got: "floats or integers".to_owned() });
                }
            }
        }
        self.end();
        Ok(())
    }

    /// Appends the example at `index` of `from`, which has the same columns. If this block stores a column
    /// as floats or `i32` integers, `from` may store it in any way; otherwise both must store it in the same
    /// way.
    pub(crate) fn copy(&mut self, from: &Self, index: usize) -> Result<(), InputError> {
        self.begin()?;
        for (position, (_, storage)) in self.columns.iter_mut().enumerate() {
            storage.copy(from.storage(position), index, self.elements[position]);
        }
        self.end();
        Ok(())
    }

    /// Replaces the example at index `index` with the example at index `other` of the block `from`. Both
    /// blocks must have the same columns, stored in the same way.
    pub(crate) fn replace(&mut self, index: usize, from: &Self, other: usize) {
        for (position, (_, storage)) in self.columns.iter_mut().enumerate() {
            storage.replace(index, from.storage(position), other, self.elements[position]);
        }
    }

    /// Removes all examples, but does not free their memory.
    pub fn clear(&mut self) {
        self.columns.iter_mut().for_each(|(_, storage)| storage.clear());
        self.examples = 0;
    }

    /// Reserves memory for one more example, which [`end`](Self::end) completes.
    ///
    /// # Errors
    /// [`InputError::Held`] if the examples would exceed [`HELD_BYTES_MAX`]; [`InputError::NoRoom`] if the
    /// system has no memory left.
    pub(crate) fn begin(&mut self) -> Result<(), InputError> {
        let examples = self.examples as u64;
        if (examples + 1).saturating_mul(self.bytes) > HELD_BYTES_MAX {
            return Err(InputError::Held { examples, bytes: self.bytes, max: HELD_BYTES_MAX });
        }
        for ((spec, storage), &elements) in self.columns.iter_mut().zip(&self.elements) {
            storage
                .reserve(elements)
                .map_err(|_| InputError::NoRoom { column: spec.name.clone(), examples: examples + 1 })?;
        }
        Ok(())
    }

    /// Returns the column at `position`. The caller appends the elements of the current example to it.
    pub(crate) fn column(&mut self, position: usize) -> &mut Storage {
        &mut self.columns[position].1
    }

    /// Returns the stored elements of the column at `position`.
    pub(crate) fn storage(&self, position: usize) -> &Storage {
        &self.columns[position].1
    }

    /// Completes the example that [`begin`](Self::begin) started.
    pub(crate) fn end(&mut self) {
        self.examples += 1;
        let whole = |((_, storage), elements): (&(ColumnSpec, Storage), &usize)| {
            storage.elements() == self.examples * elements
        };
        debug_assert!(self.columns.iter().zip(&self.elements).all(whole), "an example is incomplete");
    }

    /// Removes the elements that were appended since [`begin`](Self::begin).
    pub(crate) fn abandon(&mut self) {
        for ((_, storage), elements) in self.columns.iter_mut().zip(&self.elements) {
            storage.truncate(self.examples * elements);
        }
    }

    /// Returns true if both blocks have the same columns and store them in the same way.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let kind = std::mem::discriminant::<Storage>;
        let same = |((a, first), (b, second)): (&(ColumnSpec, Storage), &(ColumnSpec, Storage))| {
            a == b && kind(first) == kind(second)
        };
        self.columns.len() == other.columns.len() && self.columns.iter().zip(&other.columns).all(same)
    }

    /// Returns an empty block whose columns are those of this block, followed by those of `other`.
    pub(crate) fn beside(&self, other: &Self) -> Result<Self, InputError> {
        let empty = |(spec, storage): &(ColumnSpec, Storage)| (spec.clone(), storage.empty());
        Self::new(self.columns.iter().chain(&other.columns).map(empty).collect())
    }

    /// Appends an example that joins two examples with the same `index`: its first columns are those of
    /// `first`, and its other columns are those of `second`.
    pub(crate) fn join(&mut self, first: &Self, second: &Self, index: usize) -> Result<(), InputError> {
        self.begin()?;
        let from = first.columns.iter().chain(&second.columns);
        for ((to, elements), from) in self.columns.iter_mut().zip(&self.elements).zip(from) {
            to.1.copy(&from.1, index, *elements);
        }
        self.end();
        Ok(())
    }

    /// Returns the number of examples, and the columns with their elements.
    pub(crate) fn into_columns(self) -> (usize, Vec<(ColumnSpec, Storage)>) {
        (self.examples, self.columns)
    }
}

/// Shows only the columns, because the examples may be millions of numbers.
impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rows").field("examples", &self.examples).finish_non_exhaustive()
    }
}
