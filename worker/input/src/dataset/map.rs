//! A data set that applies a function to each example of another set. This module must not depend on what
//! the function does.

use std::sync::Arc;

use pushpull_messages::input::ColumnSpec;

use super::into_example::{IntoExample, example};
use super::{Dataset, Reader, Row, Rows, read_some};
use crate::InputError;

/// A data set whose examples are computed by a function from the examples of another set. [`Dataset::map`]
/// makes such a set.
#[derive(Clone)]
pub struct Map<D, F> {
    inner: D,
    columns: Arc<[ColumnSpec]>,
    change: F,
}

impl<D, F> Map<D, F> {
    pub(super) fn new(inner: D, columns: Vec<ColumnSpec>, change: F) -> Self {
        Self { inner, columns: columns.into(), change }
    }
}

impl<D, F, R> Dataset for Map<D, F>
where
    D: Dataset,
    F: Fn(&Row<'_>) -> R + Clone + Send + Sync + 'static,
    R: IntoExample,
{
    fn columns(&self) -> &[ColumnSpec] {
        &self.columns
    }

    fn examples(&self) -> Option<u64> {
        self.inner.examples()
    }

    fn is_endless(&self) -> bool {
        self.inner.is_endless()
    }

    fn reader(&self) -> Result<Box<dyn Reader>, InputError> {
        let (inner, before) = (self.inner.reader()?, self.inner.rows()?);
        Ok(Box::new(MapReader { inner, before, change: self.change.clone(), next: 0 }))
    }

    fn part(&self, worker: u32, workers: u32) -> Option<Arc<dyn Dataset>> {
        let (inner, columns) = (self.inner.part(worker, workers)?, Arc::clone(&self.columns));
        Some(Arc::new(Map { inner, columns, change: self.change.clone() }))
    }
}

struct MapReader<F> {
    inner: Box<dyn Reader>,
    /// The input of the function: the examples of the other set that were read last.
    before: Rows,
    change: F,
    /// The index of the next example.
    next: u64,
}

impl<F: Fn(&Row<'_>) -> R + Send, R: IntoExample> Reader for MapReader<F> {
    fn read(&mut self, examples: usize, rows: &mut Rows) -> Result<usize, InputError> {
        self.before.clear();
        let count = read_some(&mut *self.inner, examples, &mut self.before)?;
        for index in 0..count {
            rows.push(&example(self.next, (self.change)(&self.before.row(index)))?)?;
            self.next += 1;
        }
        Ok(count)
    }

    fn skip(&mut self, examples: u64, _: &mut Rows) -> Result<u64, InputError> {
        let skipped = self.inner.skip(examples, &mut self.before)?;
        self.next += skipped;
        Ok(skipped)
    }
}
