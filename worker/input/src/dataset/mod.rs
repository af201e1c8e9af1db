//! Data sets: named columns of examples that can be read from the start any number of times. This module must
//! not depend on files, formats, or the order in which a worker uses the examples.

mod cache;
mod collect;
mod filter;
mod from_fn;
mod in_memory;
mod interleave;
mod into_example;
mod map;
mod row;
mod rows;
mod storage;
#[cfg(test)]
mod tests;
mod zip;

use std::sync::Arc;

use pushpull_messages::input::{ColumnSpec, EXAMPLE_ELEMENTS_MAX};

use crate::InputError;

pub use cache::Cache;
pub(super) use collect::{collect, collect_within, count};
pub use filter::Filter;
pub use from_fn::{FromFn, from_fn};
pub use in_memory::InMemory;
pub(super) use in_memory::{FEATURES, LABELS};
pub use interleave::Interleave;
pub use into_example::IntoExample;
pub use map::Map;
pub use row::Row;
pub use rows::{HELD_BYTES_MAX, Rows};
pub use storage::Storage;
pub use zip::Zip;

/// A set of examples that all have the same columns.
///
/// A worker reads the set once in each epoch. Property: (A) every reader returns the same examples in the
/// same order. A job that is resumed relies on this property.
pub trait Dataset: Send + Sync {
    /// Returns the specs of the columns; at least one. Their names differ.
    fn columns(&self) -> &[ColumnSpec];

    /// Returns the number of examples; `None` if it is unknown until the set has been read, or if the set has
    /// no end.
    fn examples(&self) -> Option<u64>;

    /// Returns true if the set has no end. Such a set cannot be counted or held in memory.
    fn is_endless(&self) -> bool {
        false
    }

    /// Returns the set itself if it is in memory already, and `None`, the default, otherwise.
    fn in_memory(&self) -> Option<InMemory> {
        None
    }

    /// Starts to read the set at its first example.
    ///
    /// # Errors
    /// If the set cannot be read.
    fn reader(&self) -> Result<Box<dyn Reader>, InputError>;

    /// Returns the part of the set that worker `worker` of `workers` reads; `None`, the default, if the set
    /// cannot be divided without reading it. The parts are disjoint and cover the set. Without parts, worker
    /// w of n reads the whole set and uses every n-th example, from example w on.
    fn part(&self, worker: u32, workers: u32) -> Option<Arc<dyn Dataset>> {
        let _ = (worker, workers);
        None
    }

    /// Returns an empty block for examples of this set. The default stores floats and `i32` integers. A set
    /// whose readers hand out the examples of another set should return an empty block of that other set.
    ///
    /// # Errors
    /// [`InputError::Extent`] if a column has no elements; [`InputError::NoColumn`] if there is no column.
    fn rows(&self) -> Result<Rows, InputError> {
        Rows::of(self.columns())
    }

    /// Returns a data set of the results of `change`, which is called with each example of this set.
    /// `columns` are the columns of the new set. `change` returns a value for each of these columns, or a
    /// `Result` if it may fail.
    fn map<F, R>(self, columns: Vec<ColumnSpec>, change: F) -> Map<Self, F>
    where
        Self: Sized,
        F: Fn(&Row<'_>) -> R + Clone + Send + Sync + 'static,
        R: IntoExample,
    {
        Map::new(self, columns, change)
    }

    /// Returns a data set of the examples for which `keep` returns true.
    fn filter<F>(self, keep: F) -> Filter<Self, F>
    where
        Self: Sized,
        F: Fn(&Row<'_>) -> bool + Clone + Send + Sync + 'static,
    {
        Filter::new(self, keep)
    }

    /// Returns a data set whose examples have the columns of both sets. It ends with the shorter set.
    ///
    /// # Errors
    /// [`InputError::Column`] if both sets have a column of the same name.
    fn zip<B: Dataset>(self, other: B) -> Result<Zip<Self, B>, InputError>
    where
        Self: Sized,
    {
        Zip::new(self, other)
    }

    /// Returns a data set that reads all examples into memory when its first reader is made. All readers
    /// read from this memory.
    fn cache(self) -> Cache<Self>
    where
        Self: Sized,
    {
        Cache::new(self)
    }
}

/// A position in a data set, from which the next examples are read.
pub trait Reader: Send {
    /// Appends the next examples to `rows`: at most `examples` of them. Returns the number of examples
    /// appended, which is 0 only at the end of the set, or if `examples` is 0. `rows` was made by
    /// [`Dataset::rows`] of this set.
    ///
    /// # Errors
    /// If the examples cannot be read. The position is then undefined.
    fn read(&mut self, examples: usize, rows: &mut Rows) -> Result<usize, InputError>;

    /// Skips the next `examples` examples. Returns the number of examples skipped, which is smaller than
    /// `examples` only at the end of the set. `rows` has the columns of the set, and its contents are lost.
    /// The default reads the examples.
    ///
    /// # Errors
    /// The same as those of [`read`](Self::read).
    fn skip(&mut self, examples: u64, rows: &mut Rows) -> Result<u64, InputError> {
        skip_by_reading(self, examples, rows)
    }
}

/// The default maximum number of examples that are read at a time.
const BLOCK: usize = 64;
/// The desired maximum size of the examples that are read at a time, in bytes. A single example may be
/// larger.
const BLOCK_BYTES: u64 = 8 << 20;

/// Returns the number of examples that are read at a time into `rows`; at least 1.
pub(super) fn block(rows: &Rows) -> usize {
    BLOCK.min((BLOCK_BYTES / rows.example_bytes().max(1)) as usize).max(1)
}

/// Reads at most `most` examples, and checks that the reader has appended exactly as many examples as it has
/// reported in its return value.
///
/// # Errors
/// Those of the reader; [`InputError::Reader`] if the reported number differs from the number of examples
/// appended, or is greater than `most`.
pub(super) fn read_some(
    reader: &mut (impl Reader + ?Sized),
    most: usize,
    rows: &mut Rows,
) -> Result<usize, InputError> {
    let before = rows.len();
    let told = reader.read(most, rows)?;
    let appended = rows.len().saturating_sub(before);
    match told == appended && told <= most {
        true => Ok(told),
        false => Err(InputError::Reader { most, told, appended }),
    }
}

/// Checks how a data set describes itself: there must be at least one column, the names must differ, the
/// shapes must be storable, and the blocks that the set makes must have these columns.
///
/// # Errors
/// [`InputError::NoColumn`], [`InputError::Extent`], [`InputError::Column`] or [`InputError::Example`].
pub(super) fn check(set: &dyn Dataset) -> Result<(), InputError> {
    let columns = set.columns();
    for (position, column) in columns.iter().enumerate() {
        if columns[..position].iter().any(|other| other.name == column.name) {
            let (name, expected) = (column.name.clone(), column.example.clone());
            let got = "another column of that name".to_owned();
            return Err(InputError::Column { name, expected, examples: 1, got });
        }
        let elements = column.example.shape.checked_elements().unwrap_or(0);
        if !(1..=EXAMPLE_ELEMENTS_MAX).contains(&elements) {
            return Err(InputError::Extent { examples: 1, elements, max: u32::MAX.into() });
        }
    }
    let rows = set.rows()?.columns();
    if rows != columns {
        let [expected, got] = [columns, &rows].map(ColumnSpec::list);
        return Err(InputError::Example { expected, got });
    }
    Ok(())
}

/// Skips examples by reading them.
pub(super) fn skip_by_reading(
    reader: &mut (impl Reader + ?Sized),
    examples: u64,
    rows: &mut Rows,
) -> Result<u64, InputError> {
    let (mut skipped, block) = (0, block(rows));
    while skipped < examples {
        rows.clear();
        let most = usize::try_from(examples - skipped).unwrap_or(block).min(block);
        match read_some(reader, most, rows)? {
            0 => break,
            read => skipped += read as u64,
        }
    }
    rows.clear();
    Ok(skipped)
}

impl<D: Dataset + ?Sized> Dataset for Arc<D> {
    fn columns(&self) -> &[ColumnSpec] {
        (**self).columns()
    }

    fn examples(&self) -> Option<u64> {
        (**self).examples()
    }

    fn reader(&self) -> Result<Box<dyn Reader>, InputError> {
        (**self).reader()
    }

    fn part(&self, worker: u32, workers: u32) -> Option<Arc<dyn Dataset>> {
        (**self).part(worker, workers)
    }

    fn rows(&self) -> Result<Rows, InputError> {
        (**self).rows()
    }

    fn is_endless(&self) -> bool {
        (**self).is_endless()
    }

    fn in_memory(&self) -> Option<InMemory> {
        (**self).in_memory()
    }
}
