//! A data set while it grows, example by example; or only its size, where nobody wants the examples yet.
//! Knows no format.

use pushpull_messages::input::ColumnSpec;

use super::source::Description;
use super::{Dataset, InputError, Storage};

/// Most bytes of examples that one data set holds.
pub const HELD_BYTES_MAX: u64 = 4 << 30;

/// Columns that grow by one example at a time.
pub(super) struct Rows {
    columns: Vec<(ColumnSpec, Storage)>,
    /// Of each column per example.
    elements: Vec<usize>,
    /// Of all columns per example.
    bytes: u64,
    examples: u64,
    /// Whether examples are kept, or only counted.
    keep: bool,
}

impl Rows {
    /// No example yet, of these columns, each of which begins empty.
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

    /// Makes room for one more example.
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

    /// The column that the example's elements are appended to.
    pub(super) fn column(&mut self, position: usize) -> &mut Storage {
        &mut self.columns[position].1
    }

    /// The example is complete.
    pub(super) fn end(&mut self) {
        self.examples += 1;
        if self.keep {
            let examples = self.examples as usize;
            let whole = |((_, storage), elements): (&(ColumnSpec, Storage), &usize)| {
                storage.elements() == examples * elements
            };
            debug_assert!(
                self.columns.iter().zip(&self.elements).all(whole),
                "an example that is not complete"
            );
        } else {
            self.columns.iter_mut().for_each(|(_, storage)| storage.clear());
        }
    }

    /// How many examples there are.
    pub(super) fn examples(&self) -> u64 {
        self.examples
    }

    /// The examples, where they were kept.
    pub(super) fn into_dataset(self) -> Result<Dataset, InputError> {
        Dataset::new(self.examples as usize, self.columns)
    }

    /// What can be said of them in any case.
    pub(super) fn into_description(self) -> Description {
        let columns = self.columns.into_iter().map(|(spec, _)| spec).collect();
        Description { examples: self.examples, columns }
    }
}
