//! Reads the objects of a store like files. An address of an object is, for example,
//! `s3://bucket/train-1.csv.gz`. This module must not depend on formats.

mod pieces;
#[cfg(feature = "columnar")]
mod ranges;
mod runtime;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use pushpull_storage::{Store, StoreError};

use self::pieces::{Fetch, Pieces};
#[cfg(feature = "columnar")]
pub(crate) use self::ranges::Ranges;
use self::runtime::{handle, received, send, wait};

/// The maximum number of objects whose sizes are requested at the same time.
const REQUESTS_MAX: usize = 32;

/// The address of an object: its store, and its name in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// The URL of the bucket; for `file://`, the URL of the folder.
    store: String,
    name: String,
}

impl Address {
    /// Parses `path` as the address of an object; returns `None` if it is the path of a local file.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let (scheme, rest) = path.to_str()?.split_once("://")?;
        let (store, name) = match scheme {
            "file" => rest.rsplit_once('/'),
            _ => rest.split_once('/'),
        }
        .unwrap_or((rest, ""));
        Some(Self { store: format!("{scheme}://{store}"), name: name.to_owned() })
    }

    /// Returns the folder of the object in its store, and the last part of its name.
    fn parts(&self) -> (&str, &str) {
        self.name.rsplit_once('/').unwrap_or(("", &self.name))
    }

    /// Returns the last part of the name, which may be a pattern; `None` if another part contains `*`, `?`
    /// or `[`.
    pub(crate) fn pattern(&self) -> Option<&str> {
        let (folder, name) = self.parts();
        (!is_pattern(folder) && !is_pattern(&self.store)).then_some(name)
    }

    /// Lists the objects in the folder of this address, but not those in its subfolders. Returns the address
    /// and the size of each object whose name `is_wanted` accepts, sorted by name.
    ///
    /// # Errors
    /// If the store cannot be opened or listed; if the folder has more objects than a listing may have.
    pub(crate) fn list(&self, is_wanted: impl Fn(&str) -> bool) -> io::Result<Vec<(String, u64)>> {
        let (store, folder) = (self.open_store().map_err(failed)?, self.parts().0.to_owned());
        let below = folder.clone();
        let mut objects = wait(async move { store.sizes(&below).await })?.map_err(failed)?;
        objects.retain(|(name, _)| is_wanted(name));
        objects.sort_unstable();
        let folder = if folder.is_empty() { folder } else { folder + "/" };
        let address = |(name, size)| (format!("{}/{folder}{name}", self.store), size);
        Ok(objects.into_iter().map(address).collect())
    }

    /// Returns the size of the object in bytes.
    ///
    /// # Errors
    /// The same as those of [`open`](Self::open).
    pub(crate) fn size(&self) -> io::Result<u64> {
        let (store, name) = (self.open_store().map_err(failed)?, self.name.clone());
        wait(async move { store.size(&name).await })?.map_err(failed)
    }

    /// Opens the object. Returns a reader of its bytes, and its size in bytes.
    ///
    /// # Errors
    /// `NotFound` if there is no such object; another error if the store cannot be opened or read.
    pub(crate) fn open(&self) -> io::Result<(Pieces, u64)> {
        let (fetch, size) = self.fetch()?;
        Ok((Pieces::new(handle()?, fetch, size), size))
    }

    /// Opens the object. Returns a reader of any range of its bytes, and its size in bytes.
    ///
    /// # Errors
    /// The same as those of [`open`](Self::open).
    #[cfg(feature = "columnar")]
    pub(crate) fn ranges(&self) -> io::Result<(Ranges, u64)> {
        let (fetch, size) = self.fetch()?;
        Ok((Ranges::new(fetch), size))
    }

    /// Returns a function that requests a range of the object, and the size of the object in bytes.
    fn fetch(&self) -> io::Result<(Fetch, u64)> {
        let (store, name) = (self.open_store().map_err(failed)?, self.name.clone());
        let (same, own) = (store.clone(), name.clone());
        let size = wait(async move { same.size(&own).await })?.map_err(failed)?;
        let fetch: Fetch = Arc::new(move |range| {
            let (store, name) = (store.clone(), name.clone());
            Box::pin(async move { store.read(&name, range).await })
        });
        Ok((fetch, size))
    }

    /// Opens the store. A bucket stays open after its first use, so that later requests use its connections
    /// again.
    fn open_store(&self) -> Result<Store, StoreError> {
        static BUCKETS: Mutex<BTreeMap<String, Store>> = Mutex::new(BTreeMap::new());
        if self.store.starts_with("file://") {
            return Store::open(&self.store);
        }
        let mut buckets = BUCKETS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = buckets.get(&self.store) {
            return Ok(open.clone());
        }
        let store = Store::open(&self.store)?;
        buckets.insert(self.store.clone(), store.clone());
        Ok(store)
    }
}

/// Returns the size of each object. Requests the sizes of at most [`REQUESTS_MAX`] objects at the same time.
/// The errors are those of [`Address::size`].
pub(crate) fn sizes(addresses: impl IntoIterator<Item = Address>) -> Vec<io::Result<u64>> {
    let mut addresses = addresses.into_iter().peekable();
    let mut sizes = Vec::new();
    while addresses.peek().is_some() {
        // Sends the requests for up to `REQUESTS_MAX` objects before it awaits the first reply.
        let part: Vec<_> = addresses
            .by_ref()
            .take(REQUESTS_MAX)
            .map(|address| {
                let (store, name) = (address.open_store().map_err(failed)?, address.name);
                send(async move { store.size(&name).await })
            })
            .collect();
        sizes.extend(part.into_iter().map(|sent: io::Result<_>| received(&sent?)?.map_err(failed)));
    }
    sizes
}

/// Returns true if the text contains a character that makes it a pattern: `*`, `?` or `[`.
pub(crate) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// Converts an error of a store to an I/O error.
fn failed(error: StoreError) -> io::Error {
    match error {
        StoreError::Missing { .. } => io::Error::new(io::ErrorKind::NotFound, error),
        StoreError::Location { location, hint } => {
            let text =
                format!("'{location}' is no data location, expected a path, file://, s3:// or gs://{hint}");
            io::Error::new(io::ErrorKind::Unsupported, text)
        }
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_store_and_a_name() {
        let parts = |text: &str| Address::of(text.as_ref()).map(|address| (address.store, address.name));
        let some = |store: &str, name: &str| Some((store.to_owned(), name.to_owned()));
        assert_eq!(parts("s3://b/train/a.csv"), some("s3://b", "train/a.csv"));
        assert_eq!(parts("gs://b/a.csv"), some("gs://b", "a.csv"));
        assert_eq!(parts("file:///data/train/a.csv"), some("file:///data/train", "a.csv"));
        assert_eq!(parts("s3://b"), some("s3://b", ""));
        assert_eq!(parts("/data/a.csv"), None);
        let pattern = |text: &str| Address::of(text.as_ref()).unwrap().pattern().map(ToOwned::to_owned);
        assert_eq!(pattern("s3://b/train/a-*.csv").as_deref(), Some("a-*.csv"));
        assert_eq!(pattern("s3://b/*/a.csv"), None);
    }

    #[test]
    fn what_cannot_be_opened_is_said() {
        let error = |text: &str| Address::of(text.as_ref()).unwrap().open().err().expect("an error");
        assert!(error("ftp://host/a").to_string().contains("expected a path, file://, s3:// or gs://"));
        // With the feature `cloud` of the storage, the address would be looked up.
        if Store::open("s3://bucket").is_err() {
            assert!(error("s3://bucket/a").to_string().contains("feature `cloud`"));
        }
        let folder = tempfile::TempDir::new().unwrap();
        let missing = error(&format!("file://{}/a", folder.path().display()));
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
