//! Data sets: named columns of examples that can be read from the start any number of times. This module must
//! not depend on files, formats, or the order in which a worker uses the examples.

mod cache;
mod collect;
mod filter;
mod from_fn;
mod in_memory;
mod interleave;
mod map;
mod row;
mod rows;
mod storage;
#[cfg(test)]
mod tests;
mod zip;

use std::sync::Arc;

use pushpull_messages::input::ColumnSpec;

use super::InputError;

pub use cache::Cache;
pub(super) use collect::{collect, count};
pub use filter::Filter;
pub use from_fn::{FromFn, from_fn};
pub use in_memory::InMemory;
pub(super) use in_memory::{FEATURES, LABELS};
pub use interleave::Interleave;
pub use map::Map;
pub use row::Row;
pub use rows::{HELD_BYTES_MAX, Rows};
pub use storage::Storage;
pub use zip::Zip;

/// A set of examples that all have the same columns.
///
/// A worker reads the set once in each epoch. Property: (A) every reader returns the same examples in the
/// same order. A job that is resumed relies on it.
pub trait Dataset: Send + Sync {
    /// Returns the specs of the columns; at least one. Their names differ.
    fn columns(&self) -> &[ColumnSpec];

    /// Returns the number of examples; `None` if it is unknown until the set has been read, or if the set has
    /// no end.
    fn examples(&self) -> Option<u64>;

    /// Starts to read the set at its first example.
    ///
    /// # Errors
    /// If the set cannot be read.
    fn reader(&self) -> Result<Box<dyn Reader>, InputError>;

    /// Returns the part of the set that worker `worker` of `workers` reads; `None` if the set cannot be
    /// divided without reading it, which is the default. The parts are disjoint and cover the set. Without
    /// parts, worker w of n reads the whole set and uses every n-th example, from example w on.
    fn part(&self, worker: u32, workers: u32) -> Option<Arc<dyn Dataset>> {
        let _ = (worker, workers);
        None
    }

    /// Returns an empty block for examples of this set. The default stores floats and `i32` integers.
    ///
    /// # Errors
    /// [`InputError::Extent`] if a column has no elements; [`InputError::NoColumn`] if there is no column.
    fn rows(&self) -> Result<Rows, InputError> {
        Rows::of(self.columns())
    }

    /// Returns a data set whose examples are the results of `change`. `columns` are the columns of the
    /// results.
    fn map<F>(self, columns: Vec<ColumnSpec>, change: F) -> Map<Self, F>
    where
        Self: Sized,
        F: Fn(&Row<'_>) -> Vec<super::Column> + Clone + Send + Sync + 'static,
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

    /// Returns a data set that keeps the examples in memory while they are read for the first time. Later
    /// readers read from memory.
    fn cache(self) -> Cache<Self>
    where
        Self: Sized,
    {
        Cache::new(self)
    }
}

/// A position in a data set, from which the next examples are read.
pub trait Reader: Send {
    /// Appends the next examples to `rows`, at most `examples`. Returns the number of examples appended: 0
    /// only at the end of the set, or if `examples` is 0.
    ///
    /// # Errors
    /// If the examples cannot be read. The position is then undefined.
    fn read(&mut self, examples: usize, rows: &mut Rows) -> Result<usize, InputError>;

    /// Skips the next `examples` examples. Returns the number of examples skipped, which is smaller only at
    /// the end of the set. `rows` has the columns of the set, and its contents are lost. The default reads
    /// the examples.
    ///
    /// # Errors
    /// The same as those of [`read`](Self::read).
    fn skip(&mut self, examples: u64, rows: &mut Rows) -> Result<u64, InputError> {
        skip_by_reading(self, examples, rows)
    }
}

/// The number of examples that are read at a time if a caller has no reason for another number.
pub(super) const BLOCK: usize = 64;

/// Skips examples by reading them.
pub(super) fn skip_by_reading(
    reader: &mut (impl Reader + ?Sized),
    examples: u64,
    rows: &mut Rows,
) -> Result<u64, InputError> {
    let mut skipped = 0;
    while skipped < examples {
        rows.clear();
        let most = usize::try_from(examples - skipped).unwrap_or(BLOCK).min(BLOCK);
        match reader.read(most, rows)? {
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
}
