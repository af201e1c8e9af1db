//! Opens stores by their locations.

use std::fmt;
use std::sync::Arc;

use object_store::ObjectStore;

use crate::store::{Store, StoreError};

/// An opener of stores, each given by its location. The default opens directories and buckets, as
/// [`Store::open`] does.
#[derive(Clone, Default)]
pub struct Stores(Option<Arc<dyn ObjectStore>>);

impl Stores {
    /// Makes an opener whose stores all keep their files in `inner`, whatever their locations. A simulation
    /// uses this.
    pub fn all_in(inner: Arc<dyn ObjectStore>) -> Self {
        Self(Some(inner))
    }

    /// Opens the store at `location`.
    ///
    /// # Errors
    /// The same as those of [`Store::open`].
    pub fn open(&self, location: &str) -> Result<Store, StoreError> {
        match &self.0 {
            Some(inner) => Ok(Store::with(Arc::clone(inner), location)),
            None => Store::open(location),
        }
    }

    /// Opens the store at `location`, and creates its directory if it is missing.
    ///
    /// # Errors
    /// The same as those of [`Store::create`].
    pub fn create(&self, location: &str) -> Result<Store, StoreError> {
        match &self.0 {
            Some(_) => self.open(location),
            None => Store::create(location),
        }
    }
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Stores(given)" } else { "Stores(by location)" })
    }
}
