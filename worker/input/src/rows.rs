//! A data set that grows example by example, or only its size if the examples are not needed.
//! Knows no format.

use pushpull_messages::input::ColumnSpec;

use super::description::Description;
use super::{Dataset, InputError, Storage};

/// The most bytes of examples in one data set.
pub const HELD_BYTES_MAX: u64 = 4 << 30;

/// A data set that grows by one example at a time.
pub(super) struct Rows {
    columns: Vec<(ColumnSpec, Storage)>,
    /// The elements per example of each column.
    elements: Vec<usize>,
    /// The bytes per example of all columns.
    bytes: u64,
    examples: u64,
    /// Whether examples are kept or only counted.
    keep: bool,
}

impl Rows {
    /// Starts without examples; every column must be empty.
    ///
    /// # Errors
    /// [`InputError::Extent`] for a column without elements.
    pub(super) fn new(columns: Vec<(ColumnSpec, Storage)>, keep: bool) -> Result<Self, InputError> {
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
        Ok(Self { columns, elements, bytes, examples: 0, keep })
    }

    /// Reserves memory for one more example.
    ///
    /// # Errors
    /// [`InputError::Held`] if the set would exceed [`HELD_BYTES_MAX`]; [`InputError::NoRoom`] if the system
    /// has no memory left.
    pub(super) fn begin(&mut self) -> Result<(), InputError> {
        if self.keep && (self.examples + 1).saturating_mul(self.bytes) > HELD_BYTES_MAX {
            return Err(InputError::Held { examples: self.examples, bytes: self.bytes, max: HELD_BYTES_MAX });
        }
        for ((spec, storage), &elements) in self.columns.iter_mut().zip(&self.elements) {
            storage
                .reserve(elements)
                .map_err(|_| InputError::NoRoom { column: spec.name.clone(), examples: self.examples + 1 })?;
        }
        Ok(())
    }

    /// Returns the column at `position`, to append the example's elements.
    pub(super) fn column(&mut self, position: usize) -> &mut Storage {
        &mut self.columns[position].1
    }

    /// Completes the example that was begun.
    pub(super) fn end(&mut self) {
        self.examples += 1;
        if self.keep {
            let examples = self.examples as usize;
            let whole = |((_, storage), elements): (&(ColumnSpec, Storage), &usize)| {
                storage.elements() == examples * elements
            };
            debug_assert!(self.columns.iter().zip(&self.elements).all(whole), "an example is incomplete");
        } else {
            self.columns.iter_mut().for_each(|(_, storage)| storage.clear());
        }
    }

    /// Returns the number of examples.
    pub(super) fn examples(&self) -> u64 {
        self.examples
    }

    /// Returns the examples, which must have been kept.
    pub(super) fn into_dataset(self) -> Result<Dataset, InputError> {
        Dataset::new(self.examples as usize, self.columns)
    }

    /// Returns the number of examples and the columns.
    pub(super) fn into_description(self) -> Description {
        let columns = self.columns.into_iter().map(|(spec, _)| spec).collect();
        Description { examples: self.examples, columns }
    }
}
