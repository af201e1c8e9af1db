//! A data set that keeps the examples of another set in memory. This module must not depend on what the set
//! contains.

use std::sync::{Arc, OnceLock};

use pushpull_messages::input::ColumnSpec;

use super::{Dataset, InMemory, Reader, Rows, collect};
use crate::InputError;

/// A data set that, when it is first read, reads another set into memory. [`Dataset::cache`] makes it.
/// Clones share the memory.
#[derive(Clone)]
pub struct Cache<D> {
    inner: D,
    held: Arc<OnceLock<Arc<InMemory>>>,
}

impl<D> Cache<D> {
    pub(super) fn new(inner: D) -> Self {
        Self { inner, held: Arc::default() }
    }
}

impl<D: Dataset> Dataset for Cache<D> {
    fn columns(&self) -> &[ColumnSpec] {
        self.inner.columns()
    }

    fn examples(&self) -> Option<u64> {
        self.held.get().map(|held| held.len() as u64).or_else(|| self.inner.examples())
    }

    fn is_endless(&self) -> bool {
        self.inner.is_endless()
    }

    fn in_memory(&self) -> Option<InMemory> {
        self.held.get().map(|held| InMemory::clone(held)).or_else(|| self.inner.in_memory())
    }

    fn reader(&self) -> Result<Box<dyn Reader>, InputError> {
        if let Some(held) = self.held.get() {
            return held.reader();
        }
        let held = Arc::new(collect(&self.inner)?);
        // If another reader was faster, the copy of that reader is used, and `held` is freed.
        self.held.get_or_init(|| held).reader()
    }

    fn part(&self, worker: u32, workers: u32) -> Option<Arc<dyn Dataset>> {
        // Each part holds only its own examples.
        Some(Arc::new(Cache::new(self.inner.part(worker, workers)?)))
    }

    fn rows(&self) -> Result<Rows, InputError> {
        self.inner.rows()
    }
}
