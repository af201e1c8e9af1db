//! The store that checkpoints lie in: a directory, or a bucket where that is built in. What is put appears whole and
//! durable, or not at all. Knows no checkpoint.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload};

use super::location::without_passwords;

/// Most entries that a listing gives: more is no store of ours.
const LISTED_MAX: usize = 1 << 20;

/// A place for files by name; names are such as `step-5-…/manifest.json`.
#[derive(Clone)]
pub struct Store {
    inner: Arc<dyn ObjectStore>,
    prefix: Path,
    location: String,
}

/// Why something could not be stored, or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It is nowhere that we know.
    #[error("'{location}' is no place for checkpoints: expected a directory, file://, s3:// or gs://{hint}")]
    Location {
        /// What was given.
        location: String,
        /// What else to know.
        hint: &'static str,
    },
    /// The directory is not there.
    #[error("{location} is not a directory that this host can use: {reason}")]
    Directory {
        /// Which one.
        location: String,
        /// What the system says.
        reason: String,
    },
    /// There is no such file.
    #[error("{name} is missing in {location}")]
    Missing {
        /// Which one.
        name: String,
        /// Where.
        location: String,
    },
    /// A file is longer than it may be.
    #[error("{name} in {location} has {bytes} bytes, and may have at most {max}")]
    TooLarge {
        /// Which one.
        name: String,
        /// Where.
        location: String,
        /// What it has.
        bytes: u64,
        /// What it may have.
        max: u64,
    },
    /// A file ends before what is asked for does.
    #[error("{name} in {location} has {bytes} bytes, and something is to be read up to byte {end}")]
    Cut {
        /// Which one.
        name: String,
        /// Where.
        location: String,
        /// What it has.
        bytes: u64,
        /// What was asked for.
        end: u64,
    },
    /// The store says no.
    #[error("cannot {verb} {name} in {location}: {reason}")]
    Failed {
        /// What was tried.
        verb: &'static str,
        /// With which file.
        name: String,
        /// Where.
        location: String,
        /// What the store says.
        reason: String,
    },
}

impl Store {
    /// A directory that is there, by its path or as `file://`; `s3://` and
    /// `gs://` where they are built in.
    ///
    /// # Errors
    /// Where it is none of these, or is not there.
    pub fn open(location: &str) -> Result<Self, StoreError> {
        match location.split_once("://") {
            None => Self::directory(location),
            Some(("file", path)) => Self::directory(path),
            Some(("s3" | "s3a" | "gs", _)) => Self::bucket(location),
            Some(_) => Err(StoreError::Location { location: without_passwords(location), hint: "" }),
        }
    }

    /// The same; a directory that is not there is made.
    ///
    /// # Errors
    /// As [`open`](Self::open), or where it cannot be made.
    pub fn create(location: &str) -> Result<Self, StoreError> {
        if let None | Some(("file", _)) = location.split_once("://") {
            let path = location.strip_prefix("file://").unwrap_or(location);
            std::fs::create_dir_all(path).map_err(|error| directory(location, &error))?;
        }
        Self::open(location)
    }

    /// Any other, which errors call by that name.
    pub fn with(inner: Arc<dyn ObjectStore>, location: &str) -> Self {
        Self { inner, prefix: Path::default(), location: location.to_owned() }
    }

    fn directory(path: &str) -> Result<Self, StoreError> {
        let inner = LocalFileSystem::new_with_prefix(path).map_err(|error| directory(path, &error))?;
        // What is said to be stored must outlive a loss of power (C1).
        Ok(Self::with(Arc::new(inner.with_fsync(true).with_automatic_cleanup(true)), path))
    }

    #[cfg(feature = "cloud")]
    fn bucket(location: &str) -> Result<Self, StoreError> {
        use object_store::aws::AmazonS3Builder;
        use object_store::gcp::GoogleCloudStorageBuilder;
        let wrong = |error: &dyn fmt::Display| directory(location, error);
        let path = location.split_once("://").map_or("", |(_, rest)| rest);
        let prefix = path.split_once('/').map_or("", |(_, prefix)| prefix);
        let prefix = Path::parse(prefix).map_err(|error| wrong(&error))?;
        // Credentials and regions come from the environment, as the clouds' own tools have it.
        let inner: Arc<dyn ObjectStore> = if location.starts_with("gs://") {
            Arc::new(
                GoogleCloudStorageBuilder::from_env()
                    .with_url(location)
                    .build()
                    .map_err(|error| wrong(&error))?,
            )
        } else {
            Arc::new(AmazonS3Builder::from_env().with_url(location).build().map_err(|error| wrong(&error))?)
        };
        Ok(Self { inner, prefix, location: location.to_owned() })
    }

    #[cfg(not(feature = "cloud"))]
    fn bucket(location: &str) -> Result<Self, StoreError> {
        let hint = "; s3:// and gs:// need a build with the feature `cloud`";
        Err(StoreError::Location { location: without_passwords(location), hint })
    }

    /// A folder of it as a store of its own.
    #[must_use]
    pub fn folder(&self, name: &str) -> Self {
        let location = format!("{}/{name}", self.location.trim_end_matches('/'));
        Self { inner: Arc::clone(&self.inner), prefix: self.path(name), location }
    }

    /// What it was opened as.
    pub fn location(&self) -> &str {
        &self.location
    }

    fn path(&self, name: &str) -> Path {
        name.split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }

    fn failed(&self, verb: &'static str, name: &str, error: &dyn std::error::Error) -> StoreError {
        StoreError::Failed {
            verb,
            name: name.to_owned(),
            location: without_passwords(&self.location),
            reason: root_of(error),
        }
    }

    fn missing_or(&self, verb: &'static str, name: &str, error: &object_store::Error) -> StoreError {
        match error {
            object_store::Error::NotFound { .. } => {
                StoreError::Missing { name: name.to_owned(), location: without_passwords(&self.location) }
            }
            other => self.failed(verb, name, other),
        }
    }

    /// Puts a small file there, whole, instead of any of that name.
    ///
    /// # Errors
    /// Where the store says no; then there is what was there before.
    pub async fn put(&self, name: &str, bytes: impl Into<Bytes>) -> Result<(), StoreError> {
        let payload = PutPayload::from_bytes(bytes.into());
        let put = self.inner.put(&self.path(name), payload).await;
        put.map(drop).map_err(|error| self.failed("write", name, &error))
    }

    /// Begins a file that is put together of parts, and appears when it is finished.
    ///
    /// # Errors
    /// Where the store says no.
    pub async fn upload(&self, name: &str) -> Result<Upload<'_>, StoreError> {
        let begun = self.inner.put_multipart(&self.path(name)).await;
        let inner = begun.map_err(|error| self.failed("write", name, &error))?;
        Ok(Upload { store: self, name: name.to_owned(), inner })
    }

    /// A whole file of at most so many bytes.
    ///
    /// # Errors
    /// Where it is missing, too large, or cannot be read.
    pub async fn get(&self, name: &str, bytes_max: u64) -> Result<Bytes, StoreError> {
        let bytes = self.size(name).await?;
        if bytes > bytes_max {
            let (name, location) = (name.to_owned(), without_passwords(&self.location));
            return Err(StoreError::TooLarge { name, location, bytes, max: bytes_max });
        }
        self.read(name, 0..bytes).await
    }

    /// Some bytes of a file: all that are asked for.
    ///
    /// # Errors
    /// Where it is missing, shorter, or cannot be read.
    pub async fn read(&self, name: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let wanted = range.end - range.start;
        let end = range.end;
        let bytes = match self.inner.get_range(&self.path(name), range).await {
            Ok(bytes) => bytes,
            Err(error) => {
                let error = self.missing_or("read", name, &error);
                return Err(match self.size(name).await {
                    // That is not going to be better the next time.
                    Ok(bytes) if bytes < end => StoreError::Cut {
                        name: name.to_owned(),
                        location: without_passwords(&self.location),
                        bytes,
                        end,
                    },
                    _ => error,
                });
            }
        };
        if bytes.len() as u64 != wanted {
            let (name, location) = (name.to_owned(), without_passwords(&self.location));
            return Err(StoreError::Cut { name, location, bytes: end - wanted + bytes.len() as u64, end });
        }
        Ok(bytes)
    }

    /// How long a file is.
    ///
    /// # Errors
    /// Where it is missing, or cannot be asked for.
    pub async fn size(&self, name: &str) -> Result<u64, StoreError> {
        let head = self.inner.head(&self.path(name)).await;
        head.map(|found| found.size).map_err(|error| self.missing_or("find", name, &error))
    }

    /// The folders of the store itself, by name, in any order.
    ///
    /// # Errors
    /// Where it cannot be listed.
    pub async fn folders(&self) -> Result<Vec<String>, StoreError> {
        let listed = self.inner.list_with_delimiter(Some(&self.prefix)).await;
        let listed = match listed {
            Err(object_store::Error::NotFound { .. }) => return Ok(Vec::new()),
            other => other.map_err(|error| self.failed("list", "the folders", &error))?,
        };
        let last = |path: Path| path.parts().next_back().map(|part| part.as_ref().to_owned());
        Ok(listed.common_prefixes.into_iter().filter_map(last).take(LISTED_MAX).collect())
    }

    /// The names of all files of a folder that are there, whole, in any order.
    ///
    /// # Errors
    /// Where it cannot be listed.
    pub async fn files(&self, folder: &str) -> Result<Vec<String>, StoreError> {
        let path = self.path(folder);
        let listed = self.inner.list_with_delimiter(Some(&path)).await;
        let listed = match listed {
            Err(object_store::Error::NotFound { .. }) => return Ok(Vec::new()),
            other => other.map_err(|error| self.failed("list", folder, &error))?,
        };
        let last = |path: &Path| path.parts().next_back().map(|part| part.as_ref().to_owned());
        Ok(listed.objects.iter().filter_map(|object| last(&object.location)).take(LISTED_MAX).collect())
    }

    /// Deletes a file; one that is not there is deleted already.
    ///
    /// # Errors
    /// Where the store says no.
    pub async fn delete(&self, name: &str) -> Result<(), StoreError> {
        match self.inner.delete(&self.path(name)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed("delete", name, &error)),
        }
    }

    /// Deletes a folder and all that is in it, also what a save that broke has left.
    ///
    /// # Errors
    /// Where the store says no.
    pub async fn delete_folder(&self, folder: &str) -> Result<(), StoreError> {
        let path = self.path(folder);
        let listed: Result<Vec<_>, _> = self.inner.list(Some(&path)).try_collect().await;
        for object in listed.map_err(|error| self.failed("list", folder, &error))? {
            match self.inner.delete(&object.location).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(self.failed("delete", folder, &error)),
            }
        }
        self.sweep(folder).await
    }

    /// A half-written file of a directory is no file to the store, which names it otherwise: only the system sees it.
    async fn sweep(&self, folder: &str) -> Result<(), StoreError> {
        let root = self.location.strip_prefix("file://").unwrap_or(&self.location);
        if self.location.contains("://") && root.len() == self.location.len() {
            return Ok(());
        }
        let path = std::path::Path::new(root).join(folder);
        let removed = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(path)).await;
        // It is never aborted, and does not panic.
        match removed.unwrap_or(Ok(())) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(self.failed("delete", folder, &error))
            }
            _ => Ok(()),
        }
    }

    /// A copy of a file under another name, whole.
    ///
    /// # Errors
    /// Where it is missing, or the store says no.
    pub async fn copy(&self, from: &str, to: &str) -> Result<(), StoreError> {
        let copied = self.inner.copy(&self.path(from), &self.path(to)).await;
        copied.map_err(|error| self.missing_or("copy", from, &error))
    }
}

/// A file that is being put together.
pub struct Upload<'a> {
    store: &'a Store,
    name: String,
    inner: Box<dyn MultipartUpload>,
}

impl Upload<'_> {
    /// The next part. The stores want 5 MiB at least of every part but the last.
    ///
    /// # Errors
    /// Where the store says no.
    pub async fn part(&mut self, parts: impl IntoIterator<Item = Bytes>) -> Result<(), StoreError> {
        let payload: PutPayload = parts.into_iter().collect();
        let put = self.inner.put_part(payload).await;
        put.map_err(|error| self.store.failed("write", &self.name, &error))
    }

    /// The file appears, durable.
    ///
    /// # Errors
    /// Where the store says no; then it does not.
    pub async fn finish(mut self) -> Result<(), StoreError> {
        let finished = self.inner.complete().await;
        finished.map(drop).map_err(|error| self.store.failed("write", &self.name, &error))
    }

    /// It never was. What cannot be undone now is left for whoever deletes the folder.
    pub async fn abort(mut self) {
        if let Err(error) = self.inner.abort().await {
            tracing::debug!(
                "{}: the beginning of {} stays: {error}",
                without_passwords(&self.store.location),
                self.name
            );
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({})", without_passwords(&self.location))
    }
}

fn directory(location: &str, error: &dyn fmt::Display) -> StoreError {
    StoreError::Directory { location: without_passwords(location), reason: error.to_string() }
}

/// The store wraps what the system says several times: its own words are the ones to read.
fn root_of(error: &dyn std::error::Error) -> String {
    let mut root = error;
    while let Some(source) = root.source() {
        root = source;
    }
    root.to_string()
}
