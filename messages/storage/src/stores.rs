//! Opens stores by their locations.

use std::fmt;
use std::sync::Arc;

use object_store::ObjectStore;
use pushpull_messages::checkpoint::{Level, MEMORY};

use crate::location::without_passwords;
use crate::memory::MemoryStore;
use crate::root::Root;
use crate::store::{Store, StoreError};

/// An opener of stores, each given by its location. The default opens directories and buckets, as
/// [`Store::open`] does.
#[derive(Clone, Default)]
pub struct Stores {
    all: Option<Arc<dyn ObjectStore>>,
    memory: Option<MemoryStore>,
    /// Where all stores must lie; `None` if they may lie anywhere.
    root: Option<Root>,
}

impl Stores {
    /// Makes an opener whose stores all keep their files in `inner`, whatever their locations. A simulation
    /// uses this.
    pub fn all_in(inner: Arc<dyn ObjectStore>) -> Self {
        Self { all: Some(inner), ..Self::default() }
    }

    /// Sets the store in the memory of the ps tasks, which is opened at [`MEMORY`].
    #[must_use]
    pub fn with_memory(self, memory: MemoryStore) -> Self {
        Self { memory: Some(memory), ..self }
    }

    /// Refuses all stores that do not lie at or below `root`, a directory or a part of a bucket. The store in
    /// memory is always allowed.
    #[must_use]
    pub fn below(self, root: &str) -> Self {
        Self { root: Some(Root::new(root)), ..self }
    }

    fn check(&self, location: &str) -> Result<(), StoreError> {
        match &self.root {
            Some(root) if !root.holds(location) => Err(StoreError::Outside {
                location: without_passwords(location),
                root: root.as_str().to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Opens the store at `location`.
    ///
    /// # Errors
    /// The same as those of [`Store::open`]. Refuses a location that is not [below](Self::below) the root.
    pub fn open(&self, location: &str) -> Result<Store, StoreError> {
        if Level::of(location) == Level::Memory {
            let hint = "; the task that opened it is in no cluster with ps tasks";
            let none = || StoreError::Location { location: MEMORY.to_owned(), hint };
            return self.memory.clone().map(|memory| Store::with(Arc::new(memory), MEMORY)).ok_or_else(none);
        }
        self.check(location)?;
        match &self.all {
            Some(inner) => Ok(Store::with(Arc::clone(inner), location)),
            None => Store::open(location),
        }
    }

    /// Opens the store at `location`, and creates its directory if it is missing.
    ///
    /// # Errors
    /// The same as those of [`Store::create`]. Refuses a location that is not [below](Self::below) the root.
    pub fn create(&self, location: &str) -> Result<Store, StoreError> {
        if Level::of(location) != Level::Memory {
            self.check(location)?;
        }
        match &self.all {
            None if Level::of(location) == Level::Directory => Store::create(location),
            _ => self.open(location),
        }
    }
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.all.is_some() { "Stores(given)" } else { "Stores(by location)" })
    }
}
