//! Collects a data set example by example, or counts its examples if only the size is needed. This module
//! must not depend on formats.

use pushpull_messages::input::ColumnSpec;

use super::description::Description;
use super::{Dataset, InputError, Storage};

/// The maximum number of bytes of examples in one data set.
pub const HELD_BYTES_MAX: u64 = 4 << 30;

/// A data set that grows by one example at a time.
pub(super) struct Rows {
    columns: Vec<(ColumnSpec, Storage)>,
    /// For each column, the number of elements in one example.
    elements: Vec<usize>,
    /// The number of bytes that one example takes in all columns together.
    bytes: u64,
    examples: u64,
    /// True if examples are stored; false if they are only counted.
    keep: bool,
}

impl Rows {
    /// Creates a data set without examples. The storage of each column must be empty. Stores examples if
    /// `keep` is true, and only counts them otherwise.
    ///
    /// # Errors
    /// [`InputError::Extent`] if a column has no elements per example.
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

    /// Reserves memory for one more example. [`end`](Self::end) completes it.
    ///
    /// # Errors
    /// [`InputError::Held`] if the stored examples would exceed [`HELD_BYTES_MAX`]; [`InputError::NoRoom`] if
    /// the system has no memory left.
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

    /// Returns the column at `position`. The caller appends the elements of the current example to it.
    pub(super) fn column(&mut self, position: usize) -> &mut Storage {
        &mut self.columns[position].1
    }

    /// Completes the example that [`begin`](Self::begin) started.
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

    /// Returns the collected examples as a data set. Requires that `keep` was true; otherwise no examples
    /// were stored.
    pub(super) fn into_dataset(self) -> Result<Dataset, InputError> {
        Dataset::new(self.examples as usize, self.columns)
    }

    /// Returns the number of examples and the specs of the columns.
    pub(super) fn into_description(self) -> Description {
        let columns = self.columns.into_iter().map(|(spec, _)| spec).collect();
        Description { examples: self.examples, columns }
    }
}
