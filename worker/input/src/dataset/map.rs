//! A data set whose examples a function changes. This module must not depend on what the function does.

use std::sync::Arc;

use pushpull_messages::input::{Column, ColumnSpec};

use super::{Dataset, Reader, Row, Rows, read_some};
use crate::InputError;

/// A data set whose examples are the results of a function of the examples of another set.
/// [`Dataset::map`] makes it.
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

impl<D, F> Dataset for Map<D, F>
where
    D: Dataset,
    F: Fn(&Row<'_>) -> Vec<Column> + Clone + Send + Sync + 'static,
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
        Ok(Box::new(MapReader { inner, before, change: self.change.clone() }))
    }

    fn part(&self, worker: u32, workers: u32) -> Option<Arc<dyn Dataset>> {
        let (inner, columns) = (self.inner.part(worker, workers)?, Arc::clone(&self.columns));
        Some(Arc::new(Map { inner, columns, change: self.change.clone() }))
    }
}

struct MapReader<F> {
    inner: Box<dyn Reader>,
    /// The examples before the change.
    before: Rows,
    change: F,
}

impl<F: Fn(&Row<'_>) -> Vec<Column> + Send> Reader for MapReader<F> {
    fn read(&mut self, examples: usize, rows: &mut Rows) -> Result<usize, InputError> {
        self.before.clear();
        let count = read_some(&mut *self.inner, examples, &mut self.before)?;
        for index in 0..count {
            rows.push(&(self.change)(&self.before.row(index)))?;
        }
        Ok(count)
    }

    fn skip(&mut self, examples: u64, _: &mut Rows) -> Result<u64, InputError> {
        self.inner.skip(examples, &mut self.before)
    }
}
