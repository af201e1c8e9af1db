//! A data set that contains those examples of another set for which a function returns true. This module
//! must not depend on what the function checks.

use std::sync::Arc;

use pushpull_messages::input::ColumnSpec;

use super::{Dataset, Reader, Row, Rows, read_some};
use crate::InputError;

/// A data set that contains those examples of another set for which a function returns true.
/// [`Dataset::filter`] makes it.
#[derive(Clone)]
pub struct Filter<D, F> {
    inner: D,
    keep: F,
}

impl<D, F> Filter<D, F> {
    pub(super) fn new(inner: D, keep: F) -> Self {
        Self { inner, keep }
    }
}

impl<D, F> Dataset for Filter<D, F>
where
    D: Dataset,
    F: Fn(&Row<'_>) -> bool + Clone + Send + Sync + 'static,
{
    fn columns(&self) -> &[ColumnSpec] {
        self.inner.columns()
    }

    fn examples(&self) -> Option<u64> {
        None
    }

    fn is_endless(&self) -> bool {
        self.inner.is_endless()
    }

    fn reader(&self) -> Result<Box<dyn Reader>, InputError> {
        let (inner, all) = (self.inner.reader()?, self.inner.rows()?);
        Ok(Box::new(FilterReader { inner, all, keep: self.keep.clone() }))
    }

    fn part(&self, worker: u32, workers: u32) -> Option<Arc<dyn Dataset>> {
        let inner = self.inner.part(worker, workers)?;
        Some(Arc::new(Filter { inner, keep: self.keep.clone() }))
    }

    fn rows(&self) -> Result<Rows, InputError> {
        self.inner.rows()
    }
}

struct FilterReader<F> {
    inner: Box<dyn Reader>,
    /// The examples of the other set, before they are filtered.
    all: Rows,
    keep: F,
}

impl<F: Fn(&Row<'_>) -> bool + Send> Reader for FilterReader<F> {
    fn read(&mut self, examples: usize, rows: &mut Rows) -> Result<usize, InputError> {
        let mut kept = 0;
        while kept < examples {
            self.all.clear();
            let count = read_some(&mut *self.inner, examples - kept, &mut self.all)?;
            if count == 0 {
                break;
            }
            for index in 0..count {
                if (self.keep)(&self.all.row(index)) {
                    rows.copy(&self.all, index)?;
                    kept += 1;
                }
            }
        }
        Ok(kept)
    }
}
