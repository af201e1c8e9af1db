//! The store in which checkpoints are saved: a directory or, with the feature `cloud`, a bucket of an object
//! store. A file appears complete and durable, or not at all. This module does not interpret the files.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutPayload};

use super::location::without_passwords;
use super::lock::{LOCK_FILE, LockError, StoreLock};

use crate::blocking::blocking;

/// The largest number of entries in a listing. [`Store::folders`] and [`Store::files`] ignore further
/// entries, because this project never writes that many; [`Store::sizes`] returns an error.
const LISTED_MAX: usize = 1 << 20;

/// A store of named files. A file's name is its path in the store, such as `step-5-…/manifest.json`.
#[derive(Clone)]
pub struct Store {
    inner: Arc<dyn ObjectStore>,
    prefix: Path,
    location: String,
}

/// An error in storing, reading or listing files.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The location is neither a directory nor a bucket of a kind that this build supports.
    #[error("'{location}' cannot store checkpoints, expected a directory, file://, s3:// or gs://{hint}")]
    Location {
        /// The location that was given.
        location: String,
        /// A hint to the user; may be empty.
        hint: &'static str,
    },
    /// The location is not one of those that the task may use.
    #[error(
        "'{location}' is not below {root}, where this task keeps checkpoints; use a location there, or start the task with another --checkpoint-root"
    )]
    Outside {
        /// The location that was given.
        location: String,
        /// The directory or bucket below which all locations must lie.
        root: String,
    },
    /// The directory cannot be used.
    #[error("{location} is not a directory that this host can use: {reason}")]
    Directory {
        /// The directory's path.
        location: String,
        /// The error of the operating system.
        reason: String,
    },
    /// The file does not exist.
    #[error("{name} is missing in {location}")]
    Missing {
        /// The file's name.
        name: String,
        /// The location of the store.
        location: String,
    },
    /// The folder has more files than a listing may have.
    #[error(
        "'{folder}' in {location} has {files} files, expected at most {max}: divide them among several folders"
    )]
    TooMany {
        /// The folder's name.
        folder: String,
        /// The location of the store.
        location: String,
        /// The number of files in the folder.
        files: usize,
        /// The maximum number of files.
        max: usize,
    },
    /// The file is longer than allowed.
    #[error("{name} in {location} has {bytes} bytes, expected at most {max}")]
    TooLarge {
        /// The file's name.
        name: String,
        /// The location of the store.
        location: String,
        /// The length of the file in bytes.
        bytes: u64,
        /// The largest length allowed.
        max: u64,
    },
    /// The file ends before the requested bytes.
    #[error("{name} in {location} has {bytes} bytes, expected at least {end}")]
    Cut {
        /// The file's name.
        name: String,
        /// The location of the store.
        location: String,
        /// The length of the file in bytes.
        bytes: u64,
        /// The end of the requested bytes.
        end: u64,
    },
    /// Another job saves in this directory.
    #[error(
        "'{location}' is in use by {holder}: wait until it has ended, or use another directory, because two jobs would delete each other's checkpoints"
    )]
    InUse {
        /// The location of the store.
        location: String,
        /// A description of the other job.
        holder: String,
    },
    /// An operation of the store failed.
    #[error("cannot {verb} {name} in {location}: {reason}")]
    Failed {
        /// The operation, as a verb such as `write`.
        verb: &'static str,
        /// The file's name.
        name: String,
        /// The location of the store.
        location: String,
        /// The error of the store.
        reason: String,
    },
}

impl Store {
    /// Opens a store at `location`: an existing directory, given by its path or as a `file://` URL; or, with
    /// the feature `cloud`, a bucket, given as an `s3://` or `gs://` URL.
    ///
    /// # Errors
    /// If the location is none of these, or if the path does not lead to a directory.
    pub fn open(location: &str) -> Result<Self, StoreError> {
        match location.split_once("://") {
            None => Self::directory(location),
            Some(("file", path)) => Self::directory(path),
            Some(("s3" | "s3a" | "gs", _)) => Self::bucket(location),
            Some(_) => Err(StoreError::Location { location: without_passwords(location), hint: "" }),
        }
    }

    /// Opens a store like [`open`](Self::open), but creates the directory if it is missing.
    ///
    /// # Errors
    /// If [`open`](Self::open) does not accept the location, or if the directory cannot be created.
    pub fn create(location: &str) -> Result<Self, StoreError> {
        if let None | Some(("file", _)) = location.split_once("://") {
            let path = location.strip_prefix("file://").unwrap_or(location);
            std::fs::create_dir_all(path).map_err(|error| directory(location, &error))?;
        }
        Self::open(location)
    }

    /// Makes a store that keeps its files in `inner`. Error messages name the store by `location`.
    pub fn with(inner: Arc<dyn ObjectStore>, location: &str) -> Self {
        Self { inner, prefix: Path::default(), location: location.to_owned() }
    }

    fn directory(path: &str) -> Result<Self, StoreError> {
        let found = std::fs::metadata(path).map_err(|error| directory(path, &error))?;
        if !found.is_dir() {
            return Err(directory(path, &"it exists, but is no directory"));
        }
        let inner =
            LocalFileSystem::new_with_prefix(path).map_err(|error| directory(path, &root_of(&error)))?;
        // A file that is reported as stored must survive a loss of power (C1).
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
        // Credentials and regions come from the environment, as they do for the clouds' own tools.
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

    /// Returns a store whose root is the folder `name` of this store.
    #[must_use]
    pub fn folder(&self, name: &str) -> Self {
        let location = format!("{}/{name}", self.location.trim_end_matches('/'));
        Self { inner: Arc::clone(&self.inner), prefix: self.path(name), location }
    }

    /// Returns the location with which the store was opened.
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

    /// Writes a small file in one request. An existing file of this name is replaced.
    ///
    /// # Errors
    /// If the store fails; an existing file is then left unchanged.
    pub async fn put(&self, name: &str, bytes: impl Into<Bytes>) -> Result<(), StoreError> {
        let payload = PutPayload::from_bytes(bytes.into());
        let put = self.inner.put(&self.path(name), payload).await;
        put.map(drop).map_err(|error| self.failed("write", name, &error))
    }

    /// Begins to upload a file in parts. The file appears in the store when the upload is finished.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn upload(&self, name: &str) -> Result<Upload<'_>, StoreError> {
        let begun = self.inner.put_multipart(&self.path(name)).await;
        let inner = begun.map_err(|error| self.failed("write", name, &error))?;
        Ok(Upload { store: self, name: name.to_owned(), inner })
    }

    /// Reads a whole file of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// If the file is missing, is too large, or cannot be read.
    pub async fn get(&self, name: &str, bytes_max: u64) -> Result<Bytes, StoreError> {
        let bytes = self.size(name).await?;
        if bytes > bytes_max {
            let (name, location) = (name.to_owned(), without_passwords(&self.location));
            return Err(StoreError::TooLarge { name, location, bytes, max: bytes_max });
        }
        self.read(name, 0..bytes).await
    }

    /// Reads exactly the bytes `range` of a file.
    ///
    /// # Errors
    /// If the file is missing, ends before the end of `range`, or cannot be read.
    pub async fn read(&self, name: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let expected = range.end - range.start;
        let end = range.end;
        let bytes = match self.inner.get_range(&self.path(name), range).await {
            Ok(bytes) => bytes,
            Err(error) => {
                let error = self.missing_or("read", name, &error);
                return Err(match self.size(name).await {
                    // The file is too short, so another attempt would fail, too. `Cut` tells the caller so.
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
        if bytes.len() as u64 != expected {
            let (name, location) = (name.to_owned(), without_passwords(&self.location));
            return Err(StoreError::Cut { name, location, bytes: end - expected + bytes.len() as u64, end });
        }
        Ok(bytes)
    }

    /// Returns the length of a file in bytes.
    ///
    /// # Errors
    /// If the file is missing, or if the store fails.
    pub async fn size(&self, name: &str) -> Result<u64, StoreError> {
        let head = self.inner.head(&self.path(name)).await;
        head.map(|found| found.size).map_err(|error| self.missing_or("find", name, &error))
    }

    /// Returns the names of the folders at the top of the store, in any order.
    ///
    /// # Errors
    /// If the store cannot be listed.
    pub async fn folders(&self) -> Result<Vec<String>, StoreError> {
        let listed = self.inner.list_with_delimiter(Some(&self.prefix)).await;
        let listed = match listed {
            Err(object_store::Error::NotFound { .. }) => return Ok(Vec::new()),
            other => other.map_err(|error| self.failed("list", "the folders", &error))?,
        };
        let last = |path: Path| path.parts().next_back().map(|part| part.as_ref().to_owned());
        Ok(listed.common_prefixes.into_iter().filter_map(last).take(LISTED_MAX).collect())
    }

    /// Returns the names of all complete files of a folder, in any order.
    ///
    /// # Errors
    /// If the folder cannot be listed.
    pub async fn files(&self, folder: &str) -> Result<Vec<String>, StoreError> {
        let mut files = self.list(folder).await?;
        files.truncate(LISTED_MAX);
        Ok(files.into_iter().map(|(name, _)| name).collect())
    }

    /// Returns the names and the lengths in bytes of all complete files of a folder, in any order.
    ///
    /// # Errors
    /// If the folder cannot be listed; [`StoreError::TooMany`] if it has more than 2²⁰ files.
    pub async fn sizes(&self, folder: &str) -> Result<Vec<(String, u64)>, StoreError> {
        let files = self.list(folder).await?;
        match files.len() > LISTED_MAX {
            true => Err(self.too_many(folder, files.len())),
            false => Ok(files),
        }
    }

    fn too_many(&self, folder: &str, files: usize) -> StoreError {
        let (folder, location) = (folder.to_owned(), self.location.clone());
        StoreError::TooMany { folder, location, files, max: LISTED_MAX }
    }

    async fn list(&self, folder: &str) -> Result<Vec<(String, u64)>, StoreError> {
        let path = self.path(folder);
        let listed = self.inner.list_with_delimiter(Some(&path)).await;
        let listed = match listed {
            Err(object_store::Error::NotFound { .. }) => return Ok(Vec::new()),
            other => other.map_err(|error| self.failed("list", folder, &error))?,
        };
        let last = |path: &Path| path.parts().next_back().map(|part| part.as_ref().to_owned());
        let file = |object: &ObjectMeta| Some((last(&object.location)?, object.size));
        Ok(listed.objects.iter().filter_map(file).collect())
    }

    /// Deletes a file. Succeeds if the file does not exist.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn delete(&self, name: &str) -> Result<(), StoreError> {
        match self.inner.delete(&self.path(name)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed("delete", name, &error)),
        }
    }

    /// Deletes a folder and its contents. If the store is a directory, the half-written files of failed
    /// saves are deleted, too.
    ///
    /// # Errors
    /// If the store fails.
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

    /// Locks the store for a job that saves in it. The lock lasts until it is dropped or the process ends.
    /// `holder` describes the job in the error that another job gets. Returns `None` if the store cannot be
    /// locked: it is a bucket, or its file system has no locks, or this process has no permission to open or
    /// create the lock file.
    ///
    /// # Errors
    /// Returns [`StoreError::InUse`] if another job has locked the store, and [`StoreError::Failed`] if the
    /// lock file cannot be opened for another reason.
    pub fn lock(&self, holder: &str) -> Result<Option<StoreLock>, StoreError> {
        let Some(root) = self.root() else { return Ok(None) };
        match StoreLock::take(root, holder) {
            Ok(lock) => Ok(Some(lock)),
            Err(LockError::Held(holder)) => {
                Err(StoreError::InUse { location: without_passwords(&self.location), holder })
            }
            Err(LockError::Unsupported(reason)) => {
                let location = without_passwords(&self.location);
                tracing::warn!(location, %reason, "cannot lock the checkpoint directory: let no other job use it");
                Ok(None)
            }
            Err(LockError::Failed(error)) => Err(self.failed("open", LOCK_FILE, &error)),
        }
    }

    /// Returns the path of the store; `None` if it is a bucket.
    fn root(&self) -> Option<&std::path::Path> {
        let path = self.location.strip_prefix("file://");
        let path = path.or((!self.location.contains("://")).then_some(&*self.location));
        path.map(std::path::Path::new)
    }

    /// If the store is a directory, deletes a folder with its half-written files. The store gives these
    /// files temporary names and does not list them, so they must be deleted with the folder.
    async fn sweep(&self, folder: &str) -> Result<(), StoreError> {
        let Some(root) = self.root() else { return Ok(()) };
        let path = root.join(folder);
        match blocking(move || std::fs::remove_dir_all(path)).await {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(self.failed("delete", folder, &error))
            }
            _ => Ok(()),
        }
    }

    /// Copies the file `from` to the file `to`.
    ///
    /// # Errors
    /// If the file is missing, or if the store fails.
    pub async fn copy(&self, from: &str, to: &str) -> Result<(), StoreError> {
        let copied = self.inner.copy(&self.path(from), &self.path(to)).await;
        copied.map_err(|error| self.missing_or("copy", from, &error))
    }
}

/// An upload of a file in parts.
pub struct Upload<'a> {
    store: &'a Store,
    name: String,
    inner: Box<dyn MultipartUpload>,
}

impl Upload<'_> {
    /// Uploads the next part. Object stores require every part except the last to have at least 5 MiB.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn part(&mut self, parts: impl IntoIterator<Item = Bytes>) -> Result<(), StoreError> {
        let payload: PutPayload = parts.into_iter().collect();
        let put = self.inner.put_part(payload).await;
        put.map_err(|error| self.store.failed("write", &self.name, &error))
    }

    /// Completes the upload. The file then appears in the store and is durable.
    ///
    /// # Errors
    /// If the store fails; the file then does not appear.
    pub async fn finish(mut self) -> Result<(), StoreError> {
        let finished = self.inner.complete().await;
        finished.map(drop).map_err(|error| self.store.failed("write", &self.name, &error))
    }

    /// Discards the upload. If the store fails to delete the parts, they stay. If the store is a directory,
    /// they stay until their folder is deleted; if it is a bucket, until the bucket's rules remove them.
    pub async fn abort(mut self) {
        if let Err(error) = self.inner.abort().await {
            let location = without_passwords(&self.store.location);
            tracing::debug!(location, name = self.name, reason = %error, "could not discard the parts of an upload");
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

/// Returns the text of the innermost error: the store library wraps the operating system's error several
/// times.
fn root_of(error: &dyn std::error::Error) -> String {
    let mut root = error;
    while let Some(source) = root.source() {
        root = source;
    }
    root.to_string()
}
